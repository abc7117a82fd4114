"""The clients that the tasks and threads of one process share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from quire import blocking
from quire.errors import MetadataUnavailableError

pytest.importorskip("pyspark")

from quire.spark import worker


class Fake:
    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Fake]]:
    found: list[Fake] = []

    def connect(uri: str, **_: object) -> Fake:
        found.append(Fake(uri))
        return found[-1]

    monkeypatch.setattr(blocking, "connect", connect)
    monkeypatch.setattr(worker, "_clients", {})
    yield found
    worker.close_clients()
    assert all(one.closed == 1 for one in found), "each client is closed, and once"


def fail(uri: str) -> None:
    with pytest.raises(MetadataUnavailableError), worker.client(uri):
        raise MetadataUnavailableError("no answer")


def test_an_error_of_one_thread_does_not_close_the_client_of_another(made: list[Any]) -> None:
    """The other job ended with ClientClosedError, although it would have waited for the store."""
    with worker.client("a") as ours:
        thread = threading.Thread(target=fail, args=("a",))
        thread.start()
        thread.join()
        assert not made[0].closed
        with worker.client("a") as anew:
            assert anew is not ours
        assert not made[1].closed
    assert made[0].closed == 1
    with worker.client("a") as again:
        assert again is made[1]
    fail("a")
    assert made[1].closed == 1


def test_a_replaced_client_stays_open_while_it_is_used(made: list[Any]) -> None:
    with worker.client("first"):
        for number in range(worker.CLIENTS_MAX + 1):
            with worker.client(f"c{number}"):
                pass
        assert [one.uri for one in made if one.closed] == ["c0"]
    assert [one.uri for one in made if one.closed] == ["first", "c0"]


def test_only_one_of_two_concurrent_first_clients_is_kept(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect: Any = blocking.connect

    def slow(uri: str, **config: object) -> Any:
        monkeypatch.setattr(blocking, "connect", connect)
        with worker.client(uri):  # the other one
            pass
        return connect(uri, **config)

    monkeypatch.setattr(blocking, "connect", slow)
    with worker.client("a") as ours:
        assert ours is made[0]
        assert [one.closed for one in made] == [0, 1]
