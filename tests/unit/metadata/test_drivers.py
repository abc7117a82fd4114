"""Drivers of the metadata store that come with another package."""

from __future__ import annotations

import pytest

import quire.metadata
from quire.errors import MetadataURIError, UsageError
from quire.metadata import open_metadata, register_driver
from quire_simulator.metadata import forget_memory, open_memory


async def test_without_its_driver_a_memory_uri_is_refused_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quire.metadata, "_openers", {})
    with pytest.raises(MetadataURIError, match="quire-simulator"):
        await open_metadata("memory://nobody", create=True)


async def test_a_registered_driver_opens_the_uris_of_its_scheme() -> None:
    register_driver("memory", open_memory)
    store = await open_metadata("memory://registered", create=True)
    assert await store.is_initialised()
    await store.close()
    forget_memory("registered")


def test_a_driver_cannot_take_the_scheme_of_another() -> None:
    with pytest.raises(UsageError, match="sqlite"):
        register_driver("sqlite", open_memory)
