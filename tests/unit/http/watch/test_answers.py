"""Whether bookies answer a running dashboard, over old connections and over new ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire._runtime.clock import SystemClock
from quire.client import Client
from quire.errors import BookieTimeoutError, BookieUnavailableError, TlsError, UnauthorizedError
from quire.http.watch import observations
from quire.http.watch.observations import (
    ANEW_INTERVAL_S,
    SPACE_INTERVAL_S,
    TLS_ANEW_INTERVAL_S,
    DiskSpace,
    DiskSpaces,
)
from quire.net.control import BookieInfo
from quire.replication.explain.silence import (
    Answer,
    Silence,
    SilenceKind,
    dated,
    silence_of,
)

PATIENT_S = 60.0
ONE_DAY_MS = 86_400_000
NOW_MS = 1_900_000_000_000
LATER_MS = NOW_MS + 10 * ONE_DAY_MS


class SetClock(SystemClock):
    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms


EXPIRED = Silence(SilenceKind.EXPIRED, "the certificate has expired", "Renew it")
HANGS = Silence(SilenceKind.OTHER, "it did not answer within 2 s", "")


class World:
    """Bookies whose old and new connections can fail, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.clock = SetClock()
        self.old: DiskSpace | None = DiskSpace(1, 2)
        self.new: Answer | Silence = Answer(BookieInfo(2, 1), LATER_MS)
        self.asked: list[str] = []
        monkeypatch.setattr(observations, "space_of", self.space_of)
        monkeypatch.setattr(observations, "ask_anew", self.ask_anew)
        self.spaces = DiskSpaces(lambda: self.now_s, PATIENT_S)

    async def space_of(self, client: Client, bookie: str) -> DiskSpace | None:
        self.asked.append("old")
        return self.old

    async def ask_anew(self, client: Client, bookie: str, timeout_s: float) -> Answer | Silence:
        self.asked.append("new")
        return self.new

    async def look(self, after_s: float) -> DiskSpace | None:
        self.now_s += after_s
        self.clock.ms += int(after_s * 1000)
        self.asked.clear()
        return (await self.spaces.of(self.client, ["a"]))["a"]

    @property
    def client(self) -> Client:
        return cast(Client, SimpleNamespace(clock=self.clock))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_a_bookie_without_tls_is_probed_over_a_new_connection_once_a_minute(
    world: World,
) -> None:
    world.new = Answer(BookieInfo(2, 1), None)
    assert await world.look(0) == DiskSpace(1, 2)
    assert world.asked == ["new"]
    await world.look(TLS_ANEW_INTERVAL_S)
    assert world.asked == ["old"]
    await world.look(ANEW_INTERVAL_S)
    assert world.asked == ["new"]


async def test_a_certificate_is_checked_often(world: World) -> None:
    """A dashboard reported one that had been replaced by an expired one a minute too late."""
    await world.look(0)
    assert world.spaces.certificates_ms == {"a": LATER_MS}
    await world.look(SPACE_INTERVAL_S)
    assert world.asked == ["old"]
    await world.look(TLS_ANEW_INTERVAL_S)
    assert world.asked == ["new"]


async def test_a_certificate_is_checked_as_soon_as_it_expires(world: World) -> None:
    world.new = Answer(BookieInfo(2, 1), NOW_MS + 1_500)
    await world.look(0)
    await world.look(SPACE_INTERVAL_S)
    assert world.asked == ["old"]
    world.new = EXPIRED
    assert await world.look(SPACE_INTERVAL_S) is None
    assert world.asked == ["new"]
    # A client that does not verify certificates still gets answers.
    world.new = Answer(BookieInfo(2, 1), NOW_MS + 1_500)
    assert await world.look(TLS_ANEW_INTERVAL_S) is not None
    await world.look(SPACE_INTERVAL_S)
    assert world.asked == ["old"], "the date is known already"


async def test_an_expired_certificate_is_seen_although_the_old_connection_works(
    world: World,
) -> None:
    await world.look(0)
    world.new = EXPIRED
    assert await world.look(SPACE_INTERVAL_S) is not None
    assert await world.look(TLS_ANEW_INTERVAL_S) is None
    assert world.spaces.silent == {"a": EXPIRED}
    assert await world.look(SPACE_INTERVAL_S) is None, "the old connection does not hide it again"
    assert world.asked == [], "each attempt is a line in the bookie's log"
    world.new = Answer(BookieInfo(2, 1), LATER_MS + 1)
    assert await world.look(TLS_ANEW_INTERVAL_S) is not None
    assert world.spaces.silent == {}
    assert world.spaces.certificates_ms == {"a": LATER_MS + 1}


async def test_a_failing_old_connection_is_explained_over_a_new_one(world: World) -> None:
    await world.look(0)
    world.old, world.new = None, HANGS
    assert await world.look(SPACE_INTERVAL_S) is None
    assert world.asked == ["old", "new"]
    assert world.spaces.silent == {"a": HANGS}
    await world.look(SPACE_INTERVAL_S)
    assert world.asked == ["new"], "one that hangs may return at any time"


async def test_a_bookie_that_is_gone_is_forgotten(world: World) -> None:
    world.new = HANGS
    await world.look(0)
    world.now_s += SPACE_INTERVAL_S
    assert await world.spaces.of(world.client, []) == {}
    assert (world.spaces.silent, world.spaces.certificates_ms) == ({}, {})


def caused(error: Any, cause: BaseException) -> Any:
    error.__cause__ = cause
    return error


def test_the_reason_for_the_silence_of_a_bookie_is_classified() -> None:
    def kind(error: Any) -> tuple[SilenceKind, str]:
        found = silence_of(error)
        return found.kind, found.why

    refused = "bookie a cannot be reached: [Errno 111] Connect call failed ('127.0.0.1', 1)"
    assert kind(BookieUnavailableError(refused)) == (
        SilenceKind.REFUSED, "nothing listens at its address",
    )  # fmt: skip
    both = f"{refused}, [Errno 101] Network is unreachable"
    assert kind(BookieUnavailableError(both))[0] is SilenceKind.OTHER
    assert kind(BookieTimeoutError("it did not answer")) == (
        SilenceKind.OTHER, "it did not answer",
    )  # fmt: skip
    found = silence_of(TlsError("the bookie does not offer TLS", remedy="Configure it"))
    assert (found.kind, found.remedy) == (SilenceKind.TLS, "Configure it")
    plain = silence_of(UnauthorizedError("no", ledger_id=1))
    assert (plain.kind, "--tls-ca" in plain.remedy) == (SilenceKind.TLS, True)


def test_an_expired_certificate_is_reported_with_its_date() -> None:
    assert dated(EXPIRED, "a", None, NOW_MS) == EXPIRED, "the expiry is not known"
    own = dated(EXPIRED, "a", NOW_MS - 1, NOW_MS)
    assert own.why == "the certificate of bookie a expired at 2030-03-17T17:46:39Z"
    assert (own.certificate_expires_ms, own.remedy) == (NOW_MS - 1, "Renew it")
    above = dated(EXPIRED, "a", NOW_MS + 1, NOW_MS)
    assert above.why == (
        "the certificate of bookie a is valid until 2030-03-17T17:46:40Z, but an authority that "
        "signed it has expired"
    )
