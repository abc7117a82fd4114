"""Kazoo's threads, its callbacks and its log, adapted for `kazoo_adapter`."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from quire._runtime.units import host_port

logger = logging.getLogger("quire.metadata.zookeeper")


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's threads, with a short limit for each attempt to connect.

    The limit leaves time to try another server while the session lives. The reasons of failed
    attempts are kept for the error message.
    """

    def __init__(self, attempt_timeout_s: float) -> None:
        super().__init__()
        self.attempt_timeout_s = attempt_timeout_s
        self.failures: dict[str, str] = {}

    def create_connection(self, *args: Any, **options: Any) -> Any:
        options["timeout"] = self.attempt_timeout_s
        _, port = options["address"][:2]
        server = host_port(str(options.get("hostname")), port)
        try:
            connection = super().create_connection(*args, **options)
        except OSError as error:
            self.failures[server] = error.strerror or str(error) or type(error).__name__
            raise
        self.failures[server] = "it accepts connections, but does not answer like ZooKeeper"
        return connection


class QuietLogger(logging.LoggerAdapter[logging.Logger]):
    """Kazoo's logger, which lowers the level of most lines and hides the content of requests.

    Kazoo logs each attempt to connect. Lines from DEBUG to WARNING therefore become DEBUG lines.
    The adapter itself reports failures that matter. Requests and responses contain passwords of
    ledgers and identities, so a line names only their kind and path. Lines below DEBUG are dropped,
    because they show the password of the session.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level < logging.DEBUG:
            return  # Such lines show the password of the session.
        level = level if level > logging.WARNING else logging.DEBUG
        super().log(level, msg, *map(_without_content, args), **kwargs)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs


class _Description(str):
    """A text that is its own `repr`."""

    __slots__ = ()
    __repr__ = str.__str__


def _without_content(argument: object) -> object:
    if argument is None or isinstance(argument, str | int | float | BaseException):
        return argument
    path = getattr(argument, "path", None)
    return _Description(type(argument).__name__ + (f"(path={path!r})" if path else ""))


@dataclass(frozen=True, slots=True)
class Watcher:
    """A callback of kazoo's that calls `notify` on the event loop.

    Two watchers with the same `notify` are equal. Kazoo keeps watchers in a set, so a watch that is
    set twice is called once.
    """

    to_loop: Callable[..., None]
    notify: Callable[[], None]

    def __call__(self, event: object) -> None:
        self.to_loop(self.notify)


def stop_client(client: Any) -> None:
    """Stop a kazoo client. Errors are only logged."""
    try:
        client.stop()
        client.close()
    except Exception as error:  # noqa: BLE001 (this thread is ours: nobody else would report it)
        logger.info("the ZooKeeper client did not stop cleanly: %r", error)
