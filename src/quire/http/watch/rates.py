"""The current rates and latencies of bookies, computed from two readings of their metrics.

A bookie with an HTTP server names its URL in its registration. Its `/metrics` is read only while
somebody looks at a page, and all viewers share one reading. There are no rates for a bookie without
an HTTP server, or with one whose token this server does not have.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quire._runtime.tasks import each
from quire._runtime.units import host_port
from quire.http.watch.observations import LOOK_WAIT_S, BackgroundObservation
from quire.metadata.interface import BookieAddress

ENDPOINT = "httpserver"
"""The name of the HTTP endpoint in a bookie's registration, as Apache's bookies write it."""
LOOK_INTERVAL_S = 1.0
"""The least number of seconds between two readings of a bookie's metrics."""
LOOK_AGE_MAX_S = 30.0
"""The age in seconds of the oldest reading that is compared with a new one. A rate over a longer
time would not be current."""
LOOK_TIMEOUT_S = 2.0
NUMBER_MAX = 2.0**63
"""The largest value of a metric that is used."""
METRICS_BYTES_MAX = 1024 * 1024
BOOKIES_AT_ONCE = 32

COUNTERS = {
    "adds_per_s": 'bookkeeper_server_ADD_ENTRY_REQUEST_count{success="true"}',
    "reads_per_s": 'bookkeeper_server_READ_ENTRY_REQUEST_count{success="true"}',
    "add_bytes_per_s": "bookie_WRITE_BYTES",
    "read_bytes_per_s": "bookie_READ_BYTES",
}
LATENCIES = {
    f"{what}_p{text}_ms": f'{name}{{success="true",quantile="{quantile}"}}'
    for what, name in (
        ("add", "bookkeeper_server_ADD_ENTRY_REQUEST"),
        ("read", "bookkeeper_server_READ_ENTRY_REQUEST"),
        ("queue", "bookie_journal_JOURNAL_QUEUE_LATENCY"),
        ("log", "bookie_journal_JOURNAL_ADD_ENTRY"),
        ("sync", "bookie_journal_JOURNAL_SYNC"),
    )
    for text, quantile in (("50", "0.5"), ("99", "0.99"))
}
"""The metric of each latency, by the name of the latency, such as `add_p99_ms`. Latencies are in
milliseconds, and cover the last minute or two.

`add` and `read` are whole requests. An add waits for its group (`queue`), and the group is synced
(`sync`). `log` is the time from the receipt of an add until it is in the log."""
_LEDGERS = "bookie_ledgers_count"
_SUSPENDED = {
    kind: f'quire_storage_compaction_suspended{{kind="{kind}"}}' for kind in ("minor", "major")
}
_DAMAGE = {
    "segments": "quire_storage_damaged_segments",
    "ledgers": "quire_storage_damaged_ledgers",
}
_MIN_FREE = "quire_bookie_min_free_bytes"
_WANTED = "|".join(
    map(
        re.escape,
        (
            *COUNTERS.values(),
            *LATENCIES.values(),
            _LEDGERS,
            *_SUSPENDED.values(),
            *_DAMAGE.values(),
            _MIN_FREE,
        ),
    )
)
_LINE = re.compile(rf"^({_WANTED}) (\S+)$", re.MULTILINE)
_DIRECTORY = re.compile(
    r"""^quire_directory_(free|total)_bytes\{directory="([^"\\\x00-\x1f\x7f]+)"\} ([0-9.e+]+)$""",
    re.MULTILINE,
)

Fetch = Callable[[str], Awaitable[str]]
"""A function that returns the text at a URL. Any error means that there is no text."""


@dataclass(frozen=True, slots=True)
class _Look:
    """One reading of a bookie's metrics."""

    at_s: float
    values: Mapping[str, float]
    disks: Mapping[str, tuple[float, float]]
    """The free and the total bytes of the disk of each data directory."""


class Rates(BackgroundObservation):
    """The readings, in the background, of the metrics of a cluster's bookies, and their rates.

    `fetch` reads the metrics of one bookie from its URL.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        fetch: Fetch,
        wait_s: float = LOOK_WAIT_S,
        *,
        at_once: int = BOOKIES_AT_ONCE,
    ) -> None:
        super().__init__(monotonic, LOOK_INTERVAL_S, wait_s)
        self._fetch = fetch
        self._at_once = at_once
        self.directories: Mapping[str, Mapping[str, float]] = {}
        """For each bookie, the free share of the disk of each data directory, from 0 to 1."""
        self.disks: Mapping[str, Mapping[str, tuple[float, float]]] = {}
        """For each bookie, the free and the total bytes of the disk of each data directory."""
        self.suspended: Mapping[str, list[str]] = {}
        """For each bookie, the kinds of compaction that an operator has suspended. A bookie with
        no suspended compaction is missing."""
        self.damaged: Mapping[str, dict[str, int]] = {}
        """For each bookie with damage, the number of damaged `segments`, and of `ledgers` that lack
        entries because of them."""
        self.min_free_bytes: Mapping[str, int] = {}
        """For each bookie, the free bytes of a disk below which it accepts no entries."""
        self._looks: dict[str, _Look] = {}
        self._rates: dict[str, dict[str, float | None]] = {}

    async def of(self, bookies: Mapping[str, BookieAddress]) -> dict[str, dict[str, float | None]]:
        """Return the rates and latencies of each bookie, and its number of ledgers, by bookie id.

        A bookie that reports nothing is missing. A rate is None without an earlier reading of the
        last `LOOK_AGE_MAX_S`, and after a restart of the bookie. A latency is None if no such
        operation happened.
        """
        await self.refresh(lambda: self._look(bookies))
        return self._rates

    async def read(
        self, bookies: Mapping[str, BookieAddress]
    ) -> dict[str, dict[str, float | None]]:
        """Read the metrics of all bookies now, however long it takes, and return as `of` does.

        The rates are those since the last reading.
        """
        await self._look(bookies)
        return self._rates

    async def _look(self, bookies: Mapping[str, BookieAddress]) -> None:
        places = [(name, url) for name, one in bookies.items() if (url := metrics_url(one))]
        found = await each(places, self._read, self._at_once)
        looks = {
            name: look for (name, _), look in zip(places, found, strict=True) if look is not None
        }
        self._rates = {name: _rates(self._looks.get(name), look) for name, look in looks.items()}
        self._looks = looks
        self.disks = {name: look.disks for name, look in looks.items()}
        self.directories = {
            name: {path: free / total for path, (free, total) in disks.items()}
            for name, disks in self.disks.items()
        }
        held = {
            name: [kind for kind, metric in _SUSPENDED.items() if look.values.get(metric)]
            for name, look in looks.items()
        }
        self.suspended = {name: kinds for name, kinds in held.items() if kinds}
        damage = {
            name: {key: int(look.values.get(metric, 0)) for key, metric in _DAMAGE.items()}
            for name, look in looks.items()
        }
        self.damaged = {name: found for name, found in damage.items() if any(found.values())}
        self.min_free_bytes = {
            name: int(look.values[_MIN_FREE])
            for name, look in looks.items()
            if _MIN_FREE in look.values
        }

    async def _read(self, place: tuple[str, str]) -> _Look | None:
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                text = await self._fetch(place[1])
        except Exception:  # noqa: BLE001 - after any error, this bookie has no rates
            return None
        return _Look(self._monotonic(), parsed(text), directory_sizes(text))


def metrics_url(address: BookieAddress) -> str | None:
    """Return the URL of a bookie's metrics, or None if it has no HTTP server."""
    url = http_url(address)
    return None if url is None else f"{url}/metrics"


def http_url(address: BookieAddress) -> str | None:
    """Return the URL of a bookie's HTTP server, without a path, or None if it has none."""
    found = next((one for one in address.others if one.id == ENDPOINT), None)
    if found is None or found.protocol not in ("http", "https"):
        return None
    return f"{found.protocol}://{host_port(found.host, found.port)}"


def parsed(text: str) -> dict[str, float]:
    """Return the values of the metrics that this module uses, from Prometheus' text format.

    The keys are the metrics with their labels. Values that are negative, not finite or larger than
    `NUMBER_MAX` are left out.
    """
    found = ((name, _number(number)) for name, number in _LINE.findall(text))
    return {name: value for name, value in found if value is not None}


def _number(text: str) -> float | None:
    """Return the text as a number from 0 to `NUMBER_MAX`, or None if it is not one.

    A bookie may lie. The sums and the ratios of its numbers must stay finite.
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= NUMBER_MAX else None


def directory_sizes(text: str) -> dict[str, tuple[float, float]]:
    """Return the free and the total bytes of the disk of each data directory, from Prometheus' text
    format."""
    sizes: dict[str, dict[str, float]] = {"free": {}, "total": {}}
    for which, path, number in _DIRECTORY.findall(text):
        if (value := _number(number)) is not None:
            sizes[which][path] = value
    return {
        path: (sizes["free"][path], total)
        for path, total in sizes["total"].items()
        if total >= 1 and path in sizes["free"] and sizes["free"][path] <= total
    }


def _rates(before: _Look | None, now: _Look) -> dict[str, float | None]:
    passed_s = now.at_s - before.at_s if before is not None else 0.0
    recent = before.values if before is not None and 0 < passed_s <= LOOK_AGE_MAX_S else {}

    def rate(counter: str) -> float | None:
        # A bookie that was restarted counts from zero again.
        if counter not in recent or now.values.get(counter, -1.0) < recent[counter]:
            return None
        return (now.values[counter] - recent[counter]) / passed_s

    return {
        **{name: rate(counter) for name, counter in COUNTERS.items()},
        **{name: now.values.get(value) for name, value in LATENCIES.items()},
        "ledgers": now.values.get(_LEDGERS),
    }


def together(rates: Mapping[str, Mapping[str, float | None]]) -> dict[str, Any]:
    """Return the sums of the rates of all bookies, and the latencies of the slowest bookie.

    `bookies` is the number of bookies in `rates`.
    """
    shown: dict[str, Any] = {"bookies": len(rates)}
    for names, how in ((COUNTERS, sum), (LATENCIES, max)):
        for name in names:
            known = [value for one in rates.values() if (value := one[name]) is not None]
            shown[name] = how(known) if known else None
    return shown
