"""Every deprecation warning names the line of the program that used the former name."""

from __future__ import annotations

import inspect
import linecache
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.config import BookieConfig, ClientConfig
from quire.metadata import open_metadata
from quire.statemachine import Dictionary, DurableDict, follow, lead
from quire.streams import Namespace, StreamSettings
from quire.streams.namespace.settings import DEFAULTS

NAMES_OF_MODULES = [
    ("quire", "Suspect"),
    ("quire.client.blocking", "Client"),
    ("quire.client.blocking_datasets", "BlockingDatasets"),
    ("quire.replication", "Work"),
    ("quire.streams.blocking", "Namespace"),
    ("quire.streams.blocking_objects", "BlockingObjects"),
]


@contextmanager
def warned_here(part: str = "") -> Iterator[None]:
    """Warnings about one line of this file, which has `part` in it."""
    with pytest.warns(DeprecationWarning, match="is deprecated") as found:
        yield
    [(file, line)] = {(one.filename, one.lineno) for one in found}
    assert file == __file__
    assert part in linecache.getline(file, line)


@pytest.mark.parametrize(("module", "name"), NAMES_OF_MODULES)
def test_a_former_module_name_works_and_warns(module: str, name: str) -> None:
    home = import_module(module)
    with warned_here("getattr(home, name)"):
        getattr(home, name)
    with warned_here():  # line 1 of this file
        exec(compile(f"from {module} import {name}", __file__, "exec"), {"__name__": __name__})


@pytest.mark.parametrize(
    "use",
    [
        lambda: ClientConfig(long_poll_ms=100),  # type: ignore[call-arg]
        lambda: replace(ClientConfig(), long_poll_ms=100),
        lambda: ClientConfig().long_poll_ms,  # type: ignore[attr-defined]
        lambda: BookieConfig(seal_idle_ms=100),  # type: ignore[call-arg]
        lambda: StreamSettings(retention_ms=100),  # type: ignore[call-arg]
        lambda: DEFAULTS.with_values({"retention_ms": 100}),
    ],
)
def test_a_former_setting_name_works_and_warns(use: Callable[[], object]) -> None:
    with warned_here("lambda"):
        use()


def test_a_former_configuration_key_works_and_warns(tmp_path: Path) -> None:
    path = tmp_path / "q.toml"
    path.write_text("[client]\nlong_poll_ms = 100\n")
    with warned_here("load_config"):
        quire.load_config(path)


async def test_the_former_session_of_a_metadata_store_works_and_warns(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/q.db"
    with warned_here("session_timeout_ms"):
        store = await open_metadata(uri, create=True, session_timeout_ms=4_000)
    await store.close()


SETTINGS = {"retention_ms": 86_400_000}
Use = Callable[[quire.Client, Namespace], Awaitable[Any]]


@pytest.mark.parametrize(
    "use",
    [
        lambda client, streams: client.namespace("/b", create=True, settings=SETTINGS),
        lambda client, streams: streams.configure(SETTINGS),
        lambda client, streams: streams.create_stream("b", settings=SETTINGS),
        lambda client, streams: streams.configure_stream("a", SETTINGS),
        lambda client, streams: Namespace.create(client, "/c"),
        lambda client, streams: Namespace.open(client, "/a"),
        lambda client, streams: DurableDict.open(streams, "d"),
        lambda client, streams: lead(streams, "d", Dictionary()),
        lambda client, streams: follow(streams, "a", Dictionary()),
    ],
    ids=lambda use: inspect.getsource(use).split(":", 1)[1].strip(),
)
async def test_former_client_calls_work_and_warn(client: quire.Client, use: Use) -> None:
    async with client.namespace("/a", create=True) as streams:
        await streams.create_stream("a")
        with warned_here():
            made = await use(client, streams)
        if made is not None:
            await made.close()


def test_the_former_pool_of_a_client_works_and_warns(client: quire.Client) -> None:
    with warned_here("client.pool"):
        assert client.pool is not None


def test_a_warning_is_shown_once_for_each_line() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(3):
            ClientConfig(long_poll_ms=100)  # type: ignore[call-arg]
    assert len(found) == 1
