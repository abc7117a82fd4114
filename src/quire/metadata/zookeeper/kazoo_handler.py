"""kazoo's threads, its callbacks from them, and its log, as the adapter wants them."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from quire._runtime.units import host_port

logger = logging.getLogger("quire.metadata.zookeeper")


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with connection attempts that end early enough to try another server while
    the session lives, and a memory of why they failed."""

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
        self.failures[server] = "it accepts connections, but does not answer as ZooKeeper does"
        return connection


class QuietLogger(logging.LoggerAdapter[logging.Logger]):
    """kazoo warns at each failed attempt to connect; what matters of it we report ourselves."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        super().log(logging.INFO if level == logging.WARNING else level, msg, *args, **kwargs)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs


@dataclass(frozen=True, slots=True)
class Watcher:
    """Equal for equal `notify`: kazoo keeps a set of them, so that a watch that is set again while
    it is still there is not called twice."""

    to_loop: Callable[..., None]
    notify: Callable[[], None]

    def __call__(self, event: object) -> None:
        self.to_loop(self.notify)


def stop_client(client: Any) -> None:
    try:
        client.stop()
        client.close()
    except Exception as error:  # noqa: BLE001 (a thread of ours: nobody else would see it)
        logger.info("the ZooKeeper client did not stop cleanly: %r", error)
