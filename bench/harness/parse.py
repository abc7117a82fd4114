"""Parse the output of both clients into samples.

Apache's client (`bench/peer/Bench.java`) prints one line per round:

    add   v2=true CRC32C E3W3A2 size=1024 ledgers=1 out=1000 n=5000 err=0: 5160/s 5.3 MB/s
          p50=50.43ms p99=233.54ms p99.9=238.52ms max=268.5ms          (in one line)
    read  5000 entries: 13196/s 13.5 MB/s
    rereplicate v2=true CRC32C E3W3A2 size=1024 ledgers=17 n=5000 err=0: 11000/s 11.3 MB/s
    recover v2=false CRC32C E3W3A2 size=1024 entries=50 ledgers=2: p50=289.72ms p99=289.72ms ...
    tail  v2=false CRC32C E3W3A2 size=1024 rate=2000 readers=1 seen=19999 of 19999: append to read
          p50=2.55ms p99=6.14ms p99.9=9.01ms max=12.5ms                (in one line)
    stream write E3W3A2 size=100 out=100000 n=1000000 err=0: 121000/s 12.1 MB/s
    stream read size=100 n=1000000 err=0: 699000/s 69.9 MB/s
    stream tail size=100 err=0: append to read p50=3.55ms p99=6.14ms p99.9=9.01ms max=12.5ms

Quire's client with `--json` prints one object per round with `rate_per_s`, `mb_per_s`, `p50_ms`,
`p99_ms` and `cpu_s`, and for `tail` also `acked_p50_ms` and `acked_p99_ms`. Numbers that do not
apply to the work are missing or null.
"""

from __future__ import annotations

import json
import re

from harness.model import BenchmarkError, Sample

_NUMBER = r"(\d+(?:\.\d+)?)"
_ADD = re.compile(
    rf"add\s+.*\berr=(\d+): {_NUMBER}/s {_NUMBER} MB/s p50={_NUMBER}ms p99={_NUMBER}ms"
)
_READ = re.compile(rf"read\s+\d+ entries: {_NUMBER}/s {_NUMBER} MB/s")
_REREPLICATE = re.compile(rf"rereplicate\s.*\berr=(\d+): {_NUMBER}/s {_NUMBER} MB/s")
_RECOVER = re.compile(rf"recover\s.*: p50={_NUMBER}ms p99={_NUMBER}ms")
_TAIL = re.compile(
    rf"tail\s+.*\brate=(\d+) .*\bseen=(\d+) of (\d+): append to read "
    rf"p50={_NUMBER}ms p99={_NUMBER}ms"
)
_STREAM = re.compile(rf"(stream (?:write|read))\s.*\berr=(\d+): {_NUMBER}/s {_NUMBER} MB/s")
_STREAM_TAIL = re.compile(
    rf"stream tail\s.*\berr=(\d+): append to read p50={_NUMBER}ms p99={_NUMBER}ms"
)
_LINE_OF_A_RESULT = re.compile(r"(add|read|recover|rereplicate|tail|stream)\s")


def parse_apache(line: str) -> Sample | None:
    """Return the sample of a result line, or None for other lines, such as warnings.

    A result that cannot be parsed is an error, because a changed format must not look like a run
    without results.
    """
    if match := _ADD.match(line):
        errors, rate, mb, p50, p99 = match.groups()
        return Sample("add", float(rate), float(mb), float(p50), float(p99), errors=int(errors))
    if match := _READ.match(line):
        return Sample("read", float(match[1]), float(match[2]))
    if match := _REREPLICATE.match(line):
        errors, rate, mb = match.groups()
        return Sample("rereplicate", float(rate), float(mb), errors=int(errors))
    if match := _RECOVER.match(line):
        return Sample("recover", p50_ms=float(match[1]), p99_ms=float(match[2]))
    if match := _TAIL.match(line):
        rate, seen, sent, p50, p99 = match.groups()
        missed = int(sent) - int(seen)
        return Sample("tail", float(rate), None, float(p50), float(p99), errors=missed)
    if match := _STREAM.match(line):
        kind, errors, rate, mb = match.groups()
        return Sample(kind, float(rate), float(mb), errors=int(errors))
    if match := _STREAM_TAIL.match(line):
        errors, p50, p99 = match.groups()
        return Sample("stream tail", None, None, float(p50), float(p99), errors=int(errors))
    if _LINE_OF_A_RESULT.match(line):
        raise BenchmarkError(f"a result of Apache's benchmark cannot be parsed: {line.strip()}")
    return None


def parse_quire(line: str, kind: str) -> Sample | None:
    """Return the sample of a JSON line, or None for other lines. `kind` is the requested verb."""
    if not line.startswith("{"):
        return None
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise BenchmarkError(
            f"a result of quire bench {kind} is not JSON: {line.strip()}"
        ) from error

    def number(name: str) -> float | None:
        value = fields.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BenchmarkError(f"quire bench {kind} printed {name}={value!r}, not a number")
        return float(value)

    sample = Sample(
        kind,
        rate_per_s=number("rate_per_s"),
        mb_per_s=number("mb_per_s"),
        p50_ms=number("p50_ms"),
        p99_ms=number("p99_ms"),
        acked_p50_ms=number("acked_p50_ms"),
        acked_p99_ms=number("acked_p99_ms"),
        errors=int(number("errors") or 0),
    )
    if sample.rate_per_s is None and sample.p50_ms is None:
        raise BenchmarkError(f"quire bench {kind} printed neither rate_per_s nor p50_ms: {line}")
    return sample
