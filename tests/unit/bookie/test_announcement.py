"""The registration of a bookie follows its state, whenever the state changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, cast

import pytest

from quire._runtime.retry import Backoff
from quire._runtime.tasks import TaskSet
from quire.bookie import announcement
from quire.bookie.announcement import Announced, Announcement
from quire.errors import MetadataUnavailableError
from quire.metadata.bookies.unwritable import FULL, HELD, Unwritable, from_properties
from quire.metadata.interface import BookieAddress

TIMEOUT_S = 10.0
WRITABLE = Announced(True)
STATES = (
    WRITABLE,
    Announced(False, (Unwritable(HELD),)),
    Announced(False, (Unwritable(FULL, "/d"),)),
    Announced(True, (Unwritable(FULL, "/d"),)),
)


class Scene:
    """A bookie whose state changes at chosen moments, and a registry that notes what it is told."""

    def __init__(self) -> None:
        self.state = WRITABLE
        self.shown: Announced | None = None
        self.steps: list[Callable[[], None]] = []
        """What happens within each call to the registry, one after the other."""
        self.lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.events: list[str] = []
        self.tasks = TaskSet()
        self.announcement = Announcement(
            lambda: self.state,
            lambda event, **fields: self.events.append(event),
            self.tasks,
            random.Random(1),
        )

    def becomes(self, state: Announced) -> None:
        self.state = state
        self.announcement.soon()

    async def _told(self, writable: bool, properties: Mapping[str, str]) -> None:
        told = Announced(writable, from_properties(properties) or ())
        await asyncio.sleep(0)
        if self.steps:
            self.steps.pop(0)()
        await asyncio.sleep(0)
        self.shown = told

    async def register_bookie(self, address: BookieAddress, readonly: bool) -> Scene:
        await self._told(not readonly, address.properties)
        return self

    async def set_readonly(self, readonly: bool, properties: Mapping[str, str]) -> None:
        await self._told(not readonly, properties)

    async def begin(self) -> None:
        address = BookieAddress("b", "h", 3181)
        await self.announcement.register(cast(Any, self), address, self.state)

    async def settled(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while self.announcement._announcing:
                await asyncio.sleep(0)


@pytest.mark.parametrize("states", list(product(STATES, repeat=2)))
async def test_a_state_that_changes_during_an_update_is_shown_in_the_end(
    states: tuple[Announced, ...],
) -> None:
    """The updates read the state before they wait, so an update may show a former one."""
    scene = Scene()
    await scene.begin()
    scene.steps = [lambda state=state: scene.becomes(state) for state in states]  # type: ignore[misc]
    scene.becomes(STATES[1])
    await scene.settled()
    assert scene.shown == scene.state
    if states[0] != STATES[1]:  # Otherwise one update is enough.
        assert scene.state == states[1]
    await scene.tasks.close()


@pytest.mark.parametrize("state", STATES)
async def test_a_state_that_changes_during_the_registration_is_shown(state: Announced) -> None:
    scene = Scene()
    scene.steps = [lambda: scene.becomes(state)]
    await scene.begin()
    await scene.settled()
    assert scene.shown == scene.state == state
    await scene.tasks.close()


@pytest.mark.parametrize("state", STATES)
async def test_a_state_that_changes_during_a_failing_update_is_shown(
    state: Announced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcement, "ANNOUNCE_BACKOFF", Backoff(0.0))
    scene = Scene()
    await scene.begin()

    def fails() -> None:
        scene.becomes(state)
        raise MetadataUnavailableError("the request was lost")

    scene.steps = [fails, fails]
    scene.becomes(STATES[1])
    await scene.settled()
    assert scene.shown == scene.state == state
    assert scene.events[:1] == ["registration_failed"]
    await scene.tasks.close()
