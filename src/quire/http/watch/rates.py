"""What bookies do right now: two looks at the metrics of each, a moment apart.

A bookie with an HTTP side says where it is when it registers. Its `/metrics` is read while somebody
looks at a page, never else; several who look share what was read. A bookie without has no rates
here, nor has one whose token we do not have.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quire._runtime.tasks import each
from quire._runtime.units import host_port
from quire.http.watch.observations import LOOK_WAIT_S, BackgroundObservation
from quire.metadata.interface import BookieAddress

ENDPOINT = "httpserver"
"""What Apache's bookies call it where they register."""
LOOK_INTERVAL_S = 1.0
"""Bookies are not asked more often than this."""
LOOK_AGE_MAX_S = 30.0
"""A rate since a look that is older would not be of now."""
LOOK_TIMEOUT_S = 2.0
METRICS_BYTES_MAX = 1024 * 1024
BOOKIES_AT_ONCE = 32

_COUNTERS = {
    "adds_per_s": 'bookkeeper_server_ADD_ENTRY_REQUEST_count{success="true"}',
    "reads_per_s": 'bookkeeper_server_READ_ENTRY_REQUEST_count{success="true"}',
    "add_bytes_per_s": "bookie_WRITE_BYTES",
    "read_bytes_per_s": "bookie_READ_BYTES",
}
_LATENCIES = {
    f"{what}_p{text}_ms": f'{name}{{success="true",quantile="{quantile}"}}'
    for what, name in (
        ("add", "bookkeeper_server_ADD_ENTRY_REQUEST"),
        ("read", "bookkeeper_server_READ_ENTRY_REQUEST"),
        ("sync", "bookie_journal_JOURNAL_SYNC"),
    )
    for text, quantile in (("50", "0.5"), ("99", "0.99"))
}
"""Milliseconds, of the last minute or two."""
_LEDGERS = "bookie_ledgers_count"
_SUSPENDED = {
    kind: f'quire_storage_compaction_suspended{{kind="{kind}"}}' for kind in ("minor", "major")
}
_WANTED = "|".join(
    map(
        re.escape,
        (*_COUNTERS.values(), *_LATENCIES.values(), _LEDGERS, *_SUSPENDED.values()),
    )
)
_LINE = re.compile(rf"^({_WANTED}) (\S+)$", re.MULTILINE)
_DIRECTORY = re.compile(
    r"""^quire_directory_(free|total)_bytes\{directory="([^"\\\x00-\x1f\x7f]+)"\} ([0-9.e+]+)$""",
    re.MULTILINE,
)

Fetch = Callable[[str], Awaitable[str]]
"""The text behind an address; any error means that there is none."""


@dataclass(frozen=True, slots=True)
class _Look:
    at_s: float
    values: Mapping[str, float]
    free: Mapping[str, float]


class Rates(BackgroundObservation):
    """Of a cluster's bookies. `fetch` reads one bookie's metrics."""

    def __init__(
        self, monotonic: Callable[[], float], fetch: Fetch, wait_s: float = LOOK_WAIT_S
    ) -> None:
        super().__init__(monotonic, LOOK_INTERVAL_S, wait_s)
        self._fetch = fetch
        self.directories: Mapping[str, Mapping[str, float]] = {}
        """By bookie, of each of its data directories the share of its disk that is free."""
        self.suspended: Mapping[str, list[str]] = {}
        """By bookie, the kinds of compaction that an operator has suspended; those without are
        missing."""
        self._looks: dict[str, _Look] = {}
        self._rates: dict[str, dict[str, float | None]] = {}

    async def of(self, bookies: Mapping[str, BookieAddress]) -> dict[str, dict[str, float | None]]:
        """By bookie; those that tell nothing are missing. What needs two looks is None at the
        first one, and so is the latency of what nobody did."""
        await self.refresh(lambda: self._look(bookies))
        return self._rates

    async def _look(self, bookies: Mapping[str, BookieAddress]) -> None:
        places = [(name, url) for name, one in bookies.items() if (url := metrics_url(one))]
        found = await each(places, self._read, BOOKIES_AT_ONCE)
        looks = {
            name: look for (name, _), look in zip(places, found, strict=True) if look is not None
        }
        self._rates = {name: _rates(self._looks.get(name), look) for name, look in looks.items()}
        self._looks = looks
        self.directories = {name: look.free for name, look in looks.items()}
        held = {
            name: [kind for kind, metric in _SUSPENDED.items() if look.values.get(metric)]
            for name, look in looks.items()
        }
        self.suspended = {name: kinds for name, kinds in held.items() if kinds}

    async def _read(self, place: tuple[str, str]) -> _Look | None:
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                text = await self._fetch(place[1])
        except Exception:  # noqa: BLE001 - whatever it was, there are no rates of this bookie
            return None
        return _Look(self._monotonic(), parsed(text), free_shares(text))


def metrics_url(address: BookieAddress) -> str | None:
    found = next((one for one in address.others if one.id == ENDPOINT), None)
    if found is None or found.protocol not in ("http", "https"):
        return None
    return f"{found.protocol}://{host_port(found.host, found.port)}/metrics"


def parsed(text: str) -> dict[str, float]:
    """Prometheus' text, as far as it is looked at. What is no number is left out."""
    found = ((name, _number(number)) for name, number in _LINE.findall(text))
    return {name: value for name, value in found if value is not None}


def _number(text: str) -> float | None:
    """None: it is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def free_shares(text: str) -> dict[str, float]:
    """By data directory, of the same text."""
    sizes: dict[str, dict[str, float]] = {"free": {}, "total": {}}
    for which, path, number in _DIRECTORY.findall(text):
        if (value := _number(number)) is not None:
            sizes[which][path] = value
    return {
        path: sizes["free"][path] / total
        for path, total in sizes["total"].items()
        if total and path in sizes["free"]
    }


def _rates(before: _Look | None, now: _Look) -> dict[str, float | None]:
    passed_s = now.at_s - before.at_s if before is not None else 0.0
    recent = before.values if before is not None and 0 < passed_s <= LOOK_AGE_MAX_S else {}

    def rate(counter: str) -> float | None:
        # One that was started again counts from zero.
        if counter not in recent or now.values.get(counter, -1.0) < recent[counter]:
            return None
        return (now.values[counter] - recent[counter]) / passed_s

    return {
        **{name: rate(counter) for name, counter in _COUNTERS.items()},
        **{name: now.values.get(value) for name, value in _LATENCIES.items()},
        "ledgers": now.values.get(_LEDGERS),
    }


def together(rates: Mapping[str, Mapping[str, float | None]]) -> dict[str, Any]:
    """Of all bookies: sums of what is counted, and the latencies of the slowest."""
    shown: dict[str, Any] = {"bookies": len(rates)}
    for names, how in ((_COUNTERS, sum), (_LATENCIES, max)):
        for name in names:
            known = [value for one in rates.values() if (value := one[name]) is not None]
            shown[name] = how(known) if known else None
    return shown
