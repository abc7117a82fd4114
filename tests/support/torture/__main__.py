"""The command that runs the torture test and prints its figures.

The exit status is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import quire
from quire.metadata import open_metadata
from tests.support.torture import clients
from tests.support.torture.journal import Promises, longest_pause
from tests.support.torture.judge import Verdict, judge
from tests.support.torture.nemesis import Nemesis
from tests.support.torture.place import Place, place, start_all

BOOKIES = 5
MIB = 1 << 20


async def _prepare(uri: str) -> None:
    store = await open_metadata(uri, create=True)
    await store.initialise()
    await store.close()


async def _create_streams(uri: str) -> None:
    async with quire.connect(uri, config=clients.CONFIG) as client:
        await clients.create_streams(client)


def torture(
    directory: Path, minutes: float, seed: int, bookies: int, only: Collection[str] = ()
) -> bool:
    """Run the test in `directory`, print the figures, and return whether all promises hold."""
    chance = random.Random(seed)
    with place(directory, bookies, chance) as found:
        found.run(lambda: _prepare(found.uri))
        start_all([*found.bookies, *found.healers])
        found.run(lambda: _create_streams(found.uri))
        for program in found.programs:
            program.start()
        nemesis = Nemesis(found, chance, only)
        begin_s = time.monotonic()
        nemesis.run(begin_s + minutes * 60)
        span_s = time.monotonic() - begin_s
        for program in found.programs:
            program.process.kill()
        start_all([found.zookeeper, *found.bookies, *found.healers])
        promises = Promises()
        promises.update(found.journals)
        verdict = found.run(lambda: judge(found.uri, bookies, promises))
        memory = max(bookie.process.rss_bytes() for bookie in found.bookies)
        _report(found, nemesis, promises, verdict, span_s, memory)
    return not verdict.wrong


def _report(
    found: Place,
    nemesis: Nemesis,
    promises: Promises,
    verdict: Verdict,
    span_s: float,
    memory_bytes: int,
) -> None:
    failed = {
        name.removeprefix("failed:"): count
        for name, count in sorted(promises.figures.items())
        if name.startswith("failed:")
    }
    done = {name: count for name, count in sorted(promises.figures.items()) if ":" not in name}
    acked = sum(ledger.acked + 1 for ledger in promises.ledgers.values())
    sent = sum(
        producer.acked + 1 for stream in promises.streams.values() for producer in stream.values()
    )
    _say("faults", _counted(nemesis.counts))
    for what in found.left_out:
        _say("left out", what)
    _say("acknowledged", f"{acked} entries of {len(promises.ledgers)} ledgers, {sent} records")
    _say("done", _counted(Counter(done)))
    _say("failed calls", _counted(Counter(failed)) or "none")
    _say("longest time without an acknowledgement", f"{longest_pause(promises.acked_s):.1f} s")
    _say("largest bookie at the end", f"{memory_bytes / MIB:.0f} MiB")
    _say(
        "verified",
        f"{verdict.entries} entries of {verdict.ledgers} ledgers and {verdict.records} records; "
        f"everything on its whole write quorum after {verdict.quiet_s:.0f} s",
    )
    for what in nemesis.trouble:
        _say("ended without a fault of its own", what)
    for what in verdict.wrong[:50]:
        _say("WRONG", what)
    lost = len(verdict.wrong)
    _say(
        "torture", f"{'passed' if not lost else f'FAILED, {lost} broken promises'}, {span_s:.0f} s"
    )


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _say(what: str, text: str) -> None:
    sys.stdout.write(f"{what}: {text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.torture")
    parser.add_argument("minutes", type=float, help="how long the faults last")
    parser.add_argument("--seed", type=int, default=None, help="the seed of faults and programs")
    parser.add_argument("--bookies", type=int, default=BOOKIES)
    parser.add_argument("--keep", type=Path, help="a new directory for everything, which is kept")
    parser.add_argument("--only", default="", help="the kinds of faults, separated by commas")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    _say("torture", f"{options.minutes:g} minutes, seed {seed}, {options.bookies} bookies")
    only = [kind for kind in options.only.split(",") if kind]
    directory = options.keep or Path(tempfile.mkdtemp(prefix="quire-torture-"))
    ok = torture(directory, options.minutes, seed, options.bookies, only)
    if options.keep is None:
        if ok:
            shutil.rmtree(directory)
        else:
            _say("kept", str(directory))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
