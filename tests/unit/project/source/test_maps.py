"""The maps of ARCHITECTURE.md match traced requests, and its tables match the source.

The requests are real: a client and three bookies in this process, over TCP, on a directory.
`tests/spark/streams/test_micro_batch_map.py` compares the maps of a Spark micro-batch.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from quire import Client
from tests.support.bookies.bookie import memory_metadata, running_bookie
from tests.support.call_trace import SOURCE, CallTrace, Function
from tests.support.maps import (
    CODE,
    Map,
    definitions,
    files_of,
    out_of_order,
    read_map,
    rows_below,
    untrue,
)

APPEND, READ = "Map of an append", "Map of a read"
STREAM_APPEND = "Map of a stream append"
SOURCE_MAP, SINK_MAP = "Map of a Spark micro-batch: source", "Map of a Spark micro-batch: sink"
MAPS = (APPEND, READ, STREAM_APPEND, SOURCE_MAP, SINK_MAP)
APPEND_FILES_MAX = 14
OTHER_FILES_MAX = 15
RECORDINGS = 3
"""Bookies also do things on their own. What is in every recording belongs to the request."""
QUIET_S = 0.02
QUIET_MAX_S = 20.0

Scene = Callable[[], Awaitable[object]]


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Client]:
    metadata = memory_metadata()
    async with AsyncExitStack() as stack:
        for number in range(3):
            path = directory / str(number)
            path.mkdir()
            await stack.enter_async_context(
                running_bookie(path, metadata=metadata, bookie_id=f"bookie-{number}:3181")
            )
        client = Client(metadata)
        stack.push_async_callback(client.close)
        yield client


async def quiet(trace: CallTrace) -> None:
    """Wait until nothing more is called: what the request before has left to do is done."""
    async with asyncio.timeout(QUIET_MAX_S):
        while True:
            with trace.recorded() as calls:
                await asyncio.sleep(QUIET_S)
            if not calls:
                return


async def recordings(trace: CallTrace, scene: Scene) -> list[list[Function]]:
    """Return the calls of several runs of the scene, after a first run."""
    await scene()
    made = []
    for _ in range(RECORDINGS):
        await quiet(trace)
        with trace.recorded() as calls:
            await scene()
        made.append(calls)
    return made


def check(made: list[list[Function]], map_: Map, *others: Map) -> None:
    """The steps were called in order, and no file was crossed that the maps do not name."""
    failures = [out_of_order(map_.main, calls) for calls in made]
    assert [] in failures, "\n".join(failures[0])
    crossed = set.intersection(*map(files_of, made))
    named = set().union(*(one.files | one.also_crossed for one in (map_, *others)))
    assert not crossed - named, (
        f"called, but not named in ARCHITECTURE.md: {sorted(crossed - named)}"
    )


# -- what the source has ----------------------------------------------------------------------


@pytest.mark.parametrize("heading", MAPS)
def test_each_step_names_a_function_and_its_calls(heading: str) -> None:
    wrong = untrue(read_map(heading).steps)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("heading", MAPS)
def test_each_file_named_by_a_map_exists(heading: str) -> None:
    map_ = read_map(heading)
    assert not [file for file in map_.also_crossed if not (SOURCE / file).is_file()]
    assert not map_.also_crossed & map_.files


def test_the_map_of_an_append_is_short() -> None:
    assert len({step.file for step in read_map(APPEND).main}) <= APPEND_FILES_MAX


@pytest.mark.parametrize("heading", MAPS[1:])
def test_the_other_maps_are_short(heading: str) -> None:
    assert len({step.file for step in read_map(heading).main}) <= OTHER_FILES_MAX


def test_the_index_names_files_and_symbols_that_exist() -> None:
    wrong = []
    for question, files, symbols in rows_below("Where is ...?"):
        if question == "question":
            continue
        for file in CODE.findall(files):
            if not (SOURCE / file).is_file():
                wrong.append(f"{question}: there is no file {file}")
                continue
            wrong += [
                f"{question}: {file} has no {symbol}" for symbol in CODE.findall(symbols)
                if file.endswith(".py") and symbol not in definitions(file)
            ]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_the_tables_of_rooms_name_every_folder() -> None:
    named: set[str] = set()
    for cells in rows_below("Rooms"):
        named |= {name.rstrip("/") for name in re.findall(r"`([\w/]+/)`", cells[0])}
    folders = {
        str(path.parent.relative_to(SOURCE)) for path in SOURCE.rglob("__init__.py")
        if path.parent != SOURCE
    }  # fmt: skip
    assert named == folders


# -- what is called ---------------------------------------------------------------------------


async def test_the_map_of_an_append_matches_the_calls(tmp_path: Path) -> None:
    map_ = read_map(APPEND)
    with CallTrace() as trace:
        async with cluster(tmp_path) as client:
            ledger = await client.create_ledger()

            async def two_appends() -> None:
                await asyncio.gather(ledger.append(b"one"), ledger.append(b"two"))

            check(await recordings(trace, two_appends), map_)


def branches_of(map_: Map, *numbers: str) -> set[tuple[str, str]]:
    return {(step.file, step.function) for step in map_.steps if step.number in numbers}


async def test_a_single_append_takes_the_branch_of_coalesced_adds(tmp_path: Path) -> None:
    map_ = read_map(APPEND)
    with CallTrace() as trace:
        async with cluster(tmp_path) as client:
            ledger = await client.create_ledger()
            made = await recordings(trace, lambda: ledger.append(b"one"))
    assert set.intersection(*map(files_of, made)) <= map_.files | map_.also_crossed
    # A machine that is busy may flush between two of these calls in one of the recordings.
    assert any(branches_of(map_, "6a", "6b") <= set(calls) for calls in made)


async def test_appends_to_two_ledgers_are_acknowledged_together(tmp_path: Path) -> None:
    map_ = read_map(APPEND)
    with CallTrace() as trace:
        async with cluster(tmp_path) as client:
            ledgers = [await client.create_ledger() for _ in range(2)]

            async def one_each() -> None:
                await asyncio.gather(*(ledger.append(b"one") for ledger in ledgers))

            made = await recordings(trace, one_each)
    assert any(branches_of(map_, "6a", "6b", "22a") <= set(calls) for calls in made)


async def test_the_map_of_a_read_matches_the_calls(tmp_path: Path) -> None:
    with CallTrace() as trace:
        async with cluster(tmp_path) as client:
            async with await client.create_ledger() as ledger:
                await ledger.append_many([b"entry"] * 10)
            reader = await client.open_ledger(ledger.ledger_id)

            async def read() -> None:
                assert len([entry async for entry in reader.read(2, 7)]) == 6

            check(await recordings(trace, read), read_map(READ))


async def test_the_map_of_a_stream_append_matches_the_calls(tmp_path: Path) -> None:
    with CallTrace() as trace:
        async with (
            cluster(tmp_path) as client,
            client.namespace("/maps", create=True) as streams,
            await streams.open_writer("orders", create=True) as writer,
        ):
            made = await recordings(trace, lambda: writer.append(b"record"))
    check(made, read_map(STREAM_APPEND), read_map(APPEND))


# -- the check itself -------------------------------------------------------------------------


def test_an_outdated_map_is_noticed() -> None:
    steps = read_map(APPEND).main
    calls = [(step.file, step.function) for step in steps]
    assert not out_of_order(steps, calls)
    assert out_of_order(steps, calls[1:])
    assert out_of_order(steps, [calls[1], calls[0], *calls[2:]])
    assert untrue([type(steps[0])("1", "client/nowhere.py", "f", (), False)])
    assert untrue([type(steps[0])("1", steps[0].file, "nothing", (), False)])
    assert untrue([type(steps[0])("1", steps[0].file, steps[0].function, ("jump",), False)])
