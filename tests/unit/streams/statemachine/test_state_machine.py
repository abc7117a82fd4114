"""State machines on simulated bookies: one leader, followers that agree, snapshots, failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment
from quire.codec.entry.digest import DigestType
from quire.errors import (
    MetadataError,
    NoSuchStreamError,
    StreamClosedError,
    StreamDamagedError,
    StreamFencedError,
    StreamQuotaError,
    UsageError,
)
from quire.statemachine import Dictionary
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.truncation import retain
from quire.streams.objects.format import BUCKET_KEY
from quire.streams.objects.objects import Objects
from quire.streams.statemachine.durable_dict import (
    NESTING_MAX,
    DurableDict,
    _deeply,
    open_dict,
)
from quire.streams.statemachine.snapshot_info import snapshot_info
from quire.streams.statemachine.state_machine import BUCKET, Follower, Leader, follow, lead
from quire.streams.write import segments
from tests.support.state_machines import Counter
from tests.support.streams import Bench, run


def test_executed_commands_survive_a_restart() -> None:
    async def scene(b: Bench) -> None:
        async with await open_dict(b.streams, "d") as d:
            await d.set("a", 1)
            await d.set("b", [1, {"c": None}])
            assert await d.delete("a")
            assert not await d.delete("a")
            assert await d.compare_and_set("n", None, 1)
            assert not await d.compare_and_set("n", 7, 2)
            assert dict(d) == {"b": [1, {"c": None}], "n": 1}
        async with await open_dict(b.streams, "d") as d:
            assert dict(d) == {"b": [1, {"c": None}], "n": 1}
            assert d.leader.applied == 6

    run(scene)


def test_values_are_compared_as_they_are_stored() -> None:
    """True, 1 and 1.0 were taken for the same value, although a reader gets different ones."""

    async def scene(b: Bench) -> None:
        async with await open_dict(b.streams, "d") as d:
            values: list[Any] = [True, 1, 1.0, False, 0, 0.0, -0.0, "1", [1], [True], {"a": 1}]
            for value in values:
                await d.set("n", value)
                for other in values:
                    same = repr(value) == repr(other)
                    assert await d.compare_and_set("n", other, value) == same, (value, other)
            await d.set("n", {"a": [1, {"x": 1, "y": 2}], "b": None})
            assert await d.compare_and_set(
                "n", {"b": None, "a": (1, {"y": 2, "x": 1})}, float("nan")
            )
            assert await d.compare_and_set("n", float("nan"), 1)

    run(scene)


def test_a_comparison_of_an_earlier_version_keeps_its_effect() -> None:
    """It was acknowledged, and compared the values as Python does."""
    machine = Dictionary()
    assert machine.apply(b'["set", "n", true]')
    assert machine.apply(b'["compare", "n", 1, "new"]')
    assert not machine.apply(b'["compare", "n", 1, "newer"]')
    assert machine.items == {"n": "new"}


@pytest.mark.parametrize("kind", ["dictionary", "machine"])
@pytest.mark.parametrize(
    "limit", [{"retention_s": 60.0}, {"retention_bytes": 1}], ids=["age", "size"]
)
def test_retention_deletes_no_commands(kind: str, limit: dict[str, Any]) -> None:
    """A namespace with a retention deleted the oldest commands, and with them what was set long
    ago. Nobody could open the dictionary again."""

    async def opened(b: Bench) -> Leader[bool]:
        if kind == "dictionary":
            return (await open_dict(b.streams, "d")).leader
        return await lead(b.streams, "d", Dictionary())

    async def scene(b: Bench) -> None:
        await b.streams.configure({**limit, "roll_interval_s": 10.0})
        # A leader of an earlier version has created the stream.
        await b.streams.create_stream("d")
        leader = await opened(b)
        assert (await b.streams.stream_settings("d")).explicit_truncation
        for number in range(4):
            await leader.execute(b'["set", "%d", %d]' % (number, number))
            await asyncio.sleep(100)
        await leader.close()
        assert await b.streams.retain("d", dry_run=True) == []
        assert await b.streams.retain("d") == []
        leader = await opened(b)
        assert leader.machine.items == {str(number): number for number in range(4)}  # type: ignore[attr-defined]
        await leader.snapshot()
        await leader.close()
        assert len(await b.streams.segments("d")) < 5  # a snapshot takes their place
        leader = await opened(b)
        assert leader.machine.items == {str(number): number for number in range(4)}  # type: ignore[attr-defined]
        await leader.close()

    run(scene)


def test_a_snapshot_makes_room_in_a_stream_that_is_full() -> None:
    """The proof that the leader still leads was refused as an append, so that the only call that
    makes room could not be made."""

    async def fill(d: DurableDict) -> None:
        while True:
            await d.set("n", d.get("n", 0) + 1)

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("d", settings={"bytes_max": 1_000})
        for _ in range(3):
            async with await open_dict(b.streams, "d") as d:
                with pytest.raises(StreamQuotaError):
                    await fill(d)
                await d.leader.confirm()
                reached = d["n"]
            for _ in range(2):  # the newest completed segment is always kept
                async with await open_dict(b.streams, "d") as d:
                    assert d["n"] == reached
                    await d.leader.snapshot()
            async with await open_dict(b.streams, "d") as d:
                await d.set("n", reached + 1)

    run(scene)


def test_a_snapshot_makes_room_although_the_namespace_is_closed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closing the namespace ended the retention, and the next leader found its stream full."""

    async def retain_slowly(*args: Any, **more: Any) -> list[StreamSegment]:
        await asyncio.sleep(1)
        return await retain(*args, **more)

    monkeypatch.setattr(segments, "retain", retain_slowly)

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("d", settings={"bytes_max": 1_000})

        async def led(does: Callable[[DurableDict], Awaitable[object]]) -> None:
            async with (
                await open_namespace(b.client, b.streams.path) as streams,
                await open_dict(streams, "d") as d,
            ):
                await does(d)

        async def fill(d: DurableDict) -> None:
            while True:
                await d.set("n", d.get("n", 0) + 1)

        for _ in range(5):
            with pytest.raises(StreamQuotaError):
                await led(fill)
            await led(lambda d: d.leader.snapshot())
            await led(lambda d: d.set("n", 0))

    run(scene)


def test_closing_a_leader_does_not_wait_for_ever_for_retention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*args: Any, **more: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(segments, "retain", never)

    async def scene(b: Bench) -> None:
        d = await open_dict(b.streams, "d")
        await d.set("n", 1)
        async with asyncio.timeout(2 * segments.RETENTION_LIMIT_S):
            await d.close()

    run(scene)


def test_the_stream_of_a_state_machine_with_a_snapshot_is_renamed_only_by_force() -> None:
    """The snapshot keeps the old name, so that the state machine could not be opened again."""

    async def scene(b: Bench) -> None:
        async with await open_dict(b.streams, "d") as d:
            await d.set("n", 1)
        await b.streams.rename_stream("d", "e")  # the stream has all commands
        async with await open_dict(b.streams, "e", create=False) as d:
            assert d["n"] == 1
            await d.leader.snapshot()
            with pytest.raises(UsageError, match="state-machines/acme/test/e") as refused:
                await b.streams.rename_stream("e", "f")
            assert "force=True" in refused.value.remedy
            await d.set("n", 2)  # nothing was changed, and nobody was fenced
        with pytest.raises(NoSuchStreamError):
            await b.streams.rename_stream("missing", "f")
        await b.streams.rename_stream("e", "f", force=True)
        # The snapshot that was left behind does not belong to another stream of the old name.
        await b.streams.create_stream("e")
        await b.streams.rename_stream("e", "g")

    run(scene)


class Sum:
    """A machine that returns its own buffer as its snapshot."""

    def __init__(self) -> None:
        self.state = bytearray(1)

    def apply(self, command: bytes) -> None:
        self.state[0] += len(command)

    def snapshot(self) -> bytes:
        return self.state

    def restore(self, state: bytes) -> None:
        self.state[:] = state


def test_commands_during_a_snapshot_do_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were in the snapshot, and were applied again after it."""

    async def scene(b: Bench) -> None:
        leader = await lead(b.streams, "m", Sum())
        await leader.execute(b"1")
        create_ledger = b.client.create_ledger

        async def later(**how: Any) -> Any:
            if BUCKET_KEY in how["custom"]:
                await leader.execute(b"2")
            return await create_ledger(**how)

        monkeypatch.setattr(b.client, "create_ledger", later)
        await leader.snapshot()
        await leader.close()
        follower = await follow(b.streams, "m", machine := Sum())
        await follower.wait_applied(2)
        await follower.close()
        assert machine.state == bytes([2])

    run(scene)


def test_a_stream_that_is_no_dictionary_keeps_its_retention() -> None:
    async def scene(b: Bench) -> None:
        async with b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"a record")
        with pytest.raises(UsageError, match="not a change of a dictionary"):
            await open_dict(b.streams, "s")
        assert not (await b.streams.stream_settings("s")).explicit_truncation

    run(scene)


def test_keys_are_text_and_values_json() -> None:
    async def scene(b: Bench) -> None:
        async with await open_dict(b.streams, "d") as d:
            with pytest.raises(UsageError, match="a key of the dictionary must be text"):
                await d.set(1, "x")  # type: ignore[arg-type]
            with pytest.raises(UsageError):
                await d.compare_and_set(None, None, 1)  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                await d.set("a", b"bytes")
            assert dict(d) == {}
            assert d.leader.applied == 0

    run(scene)


def nested(depth: int) -> Any:
    value: Any = "[" * 200  # brackets in a text are no nesting
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def test_a_value_that_could_not_be_restored_is_refused() -> None:
    """It was acknowledged, and after the next snapshot nobody could open the dictionary again."""

    async def scene(b: Bench) -> None:
        deep, wide = nested(NESTING_MAX), [nested(3) for _ in range(NESTING_MAX)]
        async with await open_dict(b.streams, "d") as d:
            await d.set("deep", deep)
            await d.set("wide", wide)
            for depth in (NESTING_MAX + 1, 500, 900, 100_000):
                with pytest.raises(UsageError, match=f"nests more than {NESTING_MAX} lists"):
                    await d.set("deep", nested(depth))
                with pytest.raises(UsageError, match="Nothing was changed"):
                    await d.compare_and_set("deep", None, nested(depth))
            await d.leader.snapshot()
        async with await open_dict(b.streams, "d") as d:
            assert dict(d) == {"deep": deep, "wide": wide}

    run(scene)


def test_a_value_from_before_the_depth_limit_is_applied_alike_by_every_replica() -> None:
    """The applied state once depended on the stack depth of the process."""

    async def scene(b: Bench) -> None:
        deep = nested(900)
        command = _deeply(json.dumps, ["set", "deep", deep]).encode()
        async with await open_dict(b.streams, "d") as d:
            assert await d.leader.execute(command)
            assert _deeply(json.dumps, d["deep"]) == _deeply(json.dumps, deep)
            await d.leader.snapshot()
            assert await d.leader.execute(command)
        for frames in (0, 200):
            d = await opened_below(frames, b)
            assert list(d) == ["deep"]
            await d.close()

    async def opened_below(frames: int, b: Bench) -> DurableDict:
        return await (opened_below(frames - 1, b) if frames else open_dict(b.streams, "d"))

    run(scene)


def test_values_that_are_read_are_copies() -> None:
    async def scene(b: Bench) -> None:
        async with await open_dict(b.streams, "d") as d:
            given = {"list": [1, [2]], "text": "x"}
            await d.set("a", given)
            given["list"] = "changed"
            d["a"]["list"][1].append(3)
            d.get("a")["text"] = "changed"
            for value in (*d.values(), *(value for _, value in d.items())):
                value["list"].clear()
            assert d["a"] == {"list": [1, [2]], "text": "x"}
            snapshot = json.loads(d.leader.machine.snapshot())
        async with await open_dict(b.streams, "d") as d:
            assert dict(d) == snapshot == {"a": {"list": [1, [2]], "text": "x"}}

    run(scene)


def test_a_stream_of_other_records_is_refused_and_not_changed() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("orders", create=True) as writer:
            for number in range(50):
                await writer.append(b'{"order": %d}' % number)
        with pytest.raises(UsageError, match="not a change of a dictionary"):
            await open_dict(b.streams, "orders", snapshot_every=20)
        async with b.streams.open_reader("orders") as reader:
            assert len([record async for record in reader]) == 50

    run(scene)


@pytest.mark.parametrize("state", [b"3", b"\xff", b"[]"])
def test_the_snapshot_of_another_machine_is_refused(state: bytes) -> None:
    """A number was taken for a dictionary, and changes of it became commands of the other one."""

    class Other(Counter):
        def snapshot(self) -> bytes:
            return state

    async def scene(b: Bench) -> None:
        async with await lead(b.streams, "count", Other()) as leader:
            for _ in range(3):
                await leader.execute(b"+")
            await leader.snapshot()
        before = await b.numbers("count")
        with pytest.raises(UsageError, match="not that of a dictionary"):
            async with await open_dict(b.streams, "count") as items:
                await items.set("key", 1)
        assert await b.numbers("count") == before

    run(scene)


def test_a_new_leader_fences_the_old_one() -> None:
    async def scene(b: Bench) -> None:
        old = await open_dict(b.streams, "d")
        await asyncio.gather(*[old.set(str(k), k) for k in range(100)])
        new = await open_dict(b.streams, "d")
        assert dict(new) == {str(k): k for k in range(100)}
        with pytest.raises(StreamFencedError):
            await old.set("zombie", 1)
        with pytest.raises(StreamFencedError):
            await old.leader.confirm()
        await new.leader.confirm()
        await new.set("x", "y")
        await new.close()
        with pytest.raises(StreamFencedError):
            await old.close()

    run(scene)


def test_a_snapshot_replaces_truncated_commands() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("d", settings={"roll_bytes": 500, "entry_bytes": 1_024})
        async with await open_dict(b.streams, "d", snapshot_every=50) as d:
            for k in range(400):
                await d.set(str(k % 20), k)
            expected = dict(d)
        segments = await b.streams.segments("d")
        assert segments[0].lssn > 1  # the beginning is gone
        async with await open_dict(b.streams, "d") as d:
            assert dict(d) == expected
            assert d.leader.applied == 400

    run(scene)


@pytest.mark.parametrize("copies", [1, 3])
def test_a_snapshot_is_as_durable_as_the_commands_that_it_replaces(copies: int) -> None:
    """It always had 3 copies, 2 of them acknowledged, whatever the stream had."""

    async def scene(b: Bench) -> None:
        quorums = dict.fromkeys(("ensemble_size", "write_quorum", "ack_quorum"), copies)
        await b.streams.create_stream("d", settings={**quorums, "digest": "hmac"})
        async with await open_dict(b.streams, "d", create=False) as d:
            await d.set("a", 1)
            await d.leader.snapshot()
        async with await open_dict(b.streams, "d", create=False) as d:
            assert dict(d) == {"a": 1}
        (info,) = [one async for one in Objects(b.client, BUCKET).list()]
        (segment, *_) = await b.streams.segments("d")
        snapshot = await b.client.ledger_metadata(info.ledger_id)
        commands = await b.client.ledger_metadata(segment.ledger_id)
        for one in (snapshot, commands):
            found = (one.ensemble_size, one.write_quorum, one.ack_quorum, one.digest)
            assert found == (copies, copies, copies, DigestType.HMAC)

    run(scene)


def test_short_lived_leaders_take_a_snapshot_after_enough_commands_in_total() -> None:
    """Each leader once started its own count, so short runs never took a snapshot."""

    async def scene(b: Bench) -> None:
        for start in range(0, 120, 20):
            async with await open_dict(b.streams, "d", snapshot_every=50) as d:
                for k in range(start, start + 20):
                    await d.set(str(k), k)
        (info,) = [one async for one in Objects(b.client, BUCKET).list()]
        found = snapshot_info(info)
        assert found.applied >= 100

    run(scene)


def test_commands_applied_in_one_batch_begin_only_one_snapshot() -> None:
    """Each command after the one that made a snapshot due began another one."""

    async def scene(b: Bench) -> None:
        async with await open_dict(b.streams, "d", snapshot_every=100) as d:
            taken: list[int] = []
            snapshot = d._machine.snapshot

            def counted() -> bytes:
                taken.append(d.leader.applied)
                return snapshot()

            d._machine.snapshot = counted  # type: ignore[method-assign]
            for _ in range(2):
                await asyncio.gather(*(d.set(str(k), k) for k in range(190)))
                await asyncio.sleep(10)
            assert taken == [190, 380]

    run(scene)


def test_a_snapshot_that_fails_is_logged_and_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each command once tried again, and no message said that the log only grows."""
    tried: list[int] = []

    async def scene(b: Bench) -> None:
        async with await open_dict(b.streams, "d", snapshot_every=20) as d:

            async def refused() -> None:
                tried.append(d.leader.applied)
                raise MetadataError("the store is full")

            with monkeypatch.context() as broken:
                broken.setattr(d.leader, "snapshot", refused)
                for k in range(26):
                    await d.set(str(k), k)
            assert tried == [20, 22, 24, 26]
            for k in range(4):
                await d.set(str(k), k)
        (info,) = [one async for one in Objects(b.client, BUCKET).list()]
        assert snapshot_info(info).applied >= 28

    run(scene)
    said = [one for one in caplog.records if getattr(one, "event", "") == "snapshot_failed"]
    assert len(said) == len(tried)
    assert "no snapshot of state machine d was taken: the store is full" in said[0].getMessage()


def test_a_snapshot_of_a_former_stream_is_refused() -> None:
    async def scene(b: Bench) -> None:
        async with await open_dict(b.streams, "d") as d:
            await d.set("old", 1)
            await d.leader.snapshot()
        await b.streams.delete_stream("d")
        await b.streams.create_stream("d")
        with pytest.raises(StreamDamagedError, match=r"the snapshot of state machine d .* deleted"):
            await open_dict(b.streams, "d")
        async with await open_dict(b.streams, "another") as d:
            assert dict(d) == {}

    run(scene)


def test_a_snapshot_without_its_ledger_is_ignored_or_reported() -> None:
    async def scene(b: Bench) -> None:
        async with await open_dict(b.streams, "d") as d:
            await d.set("a", 1)
            await d.leader.snapshot()
            snapshot = await Objects(b.client, BUCKET).info("acme/test/d")
            await b.client.delete_ledger(snapshot.ledger_id)
            await d.set("b", 2)
        # The log still has all commands, because the segment was being written when they were
        # truncated.
        async with await open_dict(b.streams, "d") as d:
            assert dict(d) == {"a": 1, "b": 2}
        await b.streams.truncate("d", DLSN(2, 0, 0))
        with pytest.raises(StreamDamagedError, match=r"cannot be restored: .* its ledger \d+ was"):
            await open_dict(b.streams, "d")

    run(scene)


def test_commands_that_no_snapshot_contains_are_reported_as_damage_to_a_leader() -> None:
    """A leader raised StreamGapError, which says how to read a stream and nothing of a machine."""

    async def scene(b: Bench) -> None:
        async with await open_dict(b.streams, "d") as d:
            await d.set("a", 1)
        async with await open_dict(b.streams, "d") as d:
            await d.set("b", 2)
        await b.streams.truncate("d", DLSN(2, 0, 0))
        with pytest.raises(StreamDamagedError, match=r"missing .* no snapshot contains them"):
            await open_dict(b.streams, "d")
        with pytest.raises(StreamDamagedError, match=r"missing .* no snapshot contains them"):
            async with await follow(b.streams, "d", Dictionary()) as follower:
                await follower.wait_applied(1)

    run(scene)


def test_followers_reach_the_leaders_state_and_skip_to_a_snapshot() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("d", settings={"roll_bytes": 500, "entry_bytes": 1_024})
        machine = Dictionary()
        async with await follow(b.streams, "d", machine) as follower:
            d = await open_dict(b.streams, "d")
            for k in range(40):
                await d.set(str(k), k)
            await follower.wait_applied(40)
            assert machine.items == dict(d)
            await d.leader.snapshot()
            late = Dictionary()
            async with await follow(b.streams, "d", late) as second:
                await d.set("more", 1)
                await second.wait_applied(41)
                assert late.items == dict(d)
            await d.close()

    run(scene)


def test_a_leader_that_is_replaced_while_it_restores_finds_the_newer_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its successor has truncated the commands that it wanted to apply. Nothing is damaged."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("d", settings={"roll_bytes": 500, "entry_bytes": 1_024})
        wanted = {str(k): k for k in range(40)}
        async with await open_dict(b.streams, "d") as former:
            for key, value in wanted.items():
                await former.set(key, value)
        restored = Leader._restore
        calls = 0

        async def restore(leader: Leader[Any]) -> None:
            nonlocal calls
            calls += 1
            await restored(leader)
            if calls == 1:
                async with await open_dict(b.streams, "d") as successor:
                    await successor.leader.snapshot()

        monkeypatch.setattr(Leader, "_restore", restore)
        slow = await open_dict(b.streams, "d")
        assert calls == 3
        assert dict(slow) == wanted
        assert slow.leader.applied == len(wanted)
        for call in (slow.set("more", 1), slow.close()):
            with pytest.raises(StreamFencedError):
                await call

    run(scene)


def test_a_follower_that_began_without_a_snapshot_skips_to_a_later_one() -> None:
    """It ended, and said that the snapshot with the missing commands is lost."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("d", settings={"roll_bytes": 500, "entry_bytes": 1_024})
        d = await open_dict(b.streams, "d")
        await d.set("first", 1)
        await d.leader.snapshot()
        snapshot = await Objects(b.client, BUCKET).info("acme/test/d")
        await b.client.delete_ledger(snapshot.ledger_id)
        machine = Dictionary()
        follower = Follower(b.streams, "d", machine)
        async with asyncio.timeout(60), follower:
            await follower._restore()  # it is lost, but the log still has all commands
            for k in range(40):
                await d.set(str(k), k)
            await d.leader.snapshot()
            follower._tasks.start(follower._run())
            await follower.wait_applied(41)
            assert follower.failure is None
            assert machine.items == dict(d)
        await d.close()

    run(scene)


def test_a_late_snapshot_truncates_no_stream_of_the_same_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(b: Bench) -> None:
        leader = await lead(b.streams, "m", Commands())
        for k in range(5):
            await leader.execute(b"%d" % k)
        put = Objects.put

        async def slow(self: Objects, *given: Any, **how: Any) -> Any:
            monkeypatch.undo()
            done = await put(self, *given, **how)
            await b.streams.delete_stream("m")
            async with b.streams.open_writer("m", create=True) as writer:
                for k in range(10):
                    await writer.append(b"new %d" % k)
            return done

        monkeypatch.setattr(Objects, "put", slow)
        with pytest.raises(NoSuchStreamError, match="The other stream was not truncated"):
            await leader.snapshot()
        assert len(await b.read("m")) == 10
        leader._writer.abandon()

    run(scene)


def test_errors_of_the_machine_are_raised_to_the_caller_and_stop_no_replica() -> None:
    class Picky:
        def __init__(self) -> None:
            self.sum = 0

        def apply(self, command: bytes) -> int:
            self.sum += int(command)
            return self.sum

        def snapshot(self) -> bytes:
            return b"%d" % self.sum

        def restore(self, state: bytes) -> None:
            self.sum = int(state)

    async def scene(b: Bench) -> None:
        async with await lead(b.streams, "sum", Picky()) as leader:
            assert await leader.execute(b"5") == 5
            with pytest.raises(ValueError, match="invalid literal"):
                await leader.execute(b"five")
            with pytest.raises(UsageError):
                await leader.execute(b"")
            assert await leader.execute(b"7") == 12
        again = Picky()
        async with await lead(b.streams, "sum", again) as leader:
            assert (again.sum, leader.applied) == (12, 3)

    run(scene)


class Commands:
    """A machine that keeps its commands, and whose calls can be replaced by the test."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def apply(self, command: bytes) -> int:
        self.commands.append(command.decode())
        if command == b"empty":
            next(iter(()))
        return len(self.commands)

    def snapshot(self) -> bytes:
        return json.dumps(self.commands).encode()

    def restore(self, state: bytes) -> None:
        self.commands = json.loads(state)


def test_a_machine_that_raises_stop_iteration_stops_no_replica() -> None:
    """A future cannot hold it, so this and all later commands waited for ever."""

    async def scene(b: Bench) -> None:
        async with asyncio.timeout(60), await lead(b.streams, "m", Commands()) as leader:
            with pytest.raises(RuntimeError, match="apply raised StopIteration") as raised:
                await leader.execute(b"empty")
            assert isinstance(raised.value.__cause__, StopIteration)
            assert await leader.execute(b"next") == 2
        again = Commands()
        async with await lead(b.streams, "m", again):
            assert again.commands == ["empty", "next"]

    run(scene)


class Bail(BaseException):
    """An error that is no Exception, like those of some test frameworks."""


@pytest.mark.parametrize("kind", [Bail, asyncio.CancelledError])
def test_a_machine_that_raises_a_base_exception_stops_no_replica(kind: type[BaseException]) -> None:
    """It ended the task that applies commands, so that all calls of `execute` waited for ever."""

    class Raises(Dictionary):
        def apply(self, command: bytes) -> bool:
            if command == b"bail":
                raise kind("of the machine")
            return super().apply(command)

    async def scene(b: Bench) -> None:
        machine, replica = Raises(), Raises()
        async with (
            lead(b.streams, "m", machine) as leader,
            follow(b.streams, "m", replica) as follower,
            asyncio.timeout(60),
        ):
            for _ in range(2):
                with pytest.raises(kind, match="of the machine"):
                    await leader.execute(b"bail")
                assert await leader.execute(b'["set", "a", 1]')
            await follower.wait_applied(4)
        assert machine.items == replica.items == {"a": 1}
        again = Raises()
        async with lead(b.streams, "m", again) as leader:
            assert (leader.applied, again.items) == (4, {"a": 1})

    run(scene)


def test_a_snapshot_that_raises_is_retried_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each command once tried again, and logged a traceback each time."""
    tried: list[int] = []

    class Unsaved(Commands):
        def snapshot(self) -> bytes:
            tried.append(len(self.commands))
            raise TypeError("not serializable")

    async def scene(b: Bench) -> None:
        async with await lead(b.streams, "m", Unsaved(), snapshot_every=20) as leader:
            for k in range(26):
                await leader.execute(b"%d" % k)

    run(scene)
    assert len(tried) <= 1 + 6 // 2  # of the 6 further commands, every second one tries again
    said = [one for one in caplog.records if getattr(one, "event", "") == "snapshot_failed"]
    assert [one.getMessage() for one in said] == [
        "no snapshot of state machine m was taken: TypeError('not serializable')"
    ] * len(tried)


def test_a_follower_reports_a_snapshot_that_its_machine_cannot_restore() -> None:
    """Its task ended, and callers of `wait_applied` waited for ever."""

    class Unread(Commands):
        def restore(self, state: bytes) -> None:
            raise ValueError("unknown state")

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("m", settings={"roll_bytes": 500, "entry_bytes": 1_024})
        async with (
            asyncio.timeout(60),
            Follower(b.streams, "m", Unread()) as follower,
            await lead(b.streams, "m", Commands()) as leader,
        ):
            for k in range(40):
                await leader.execute(b"%d" % k)
            await leader.snapshot()
            # The follower was opened before the snapshot, and begins to read after it.
            follower._tasks.start(follower._run())
            with pytest.raises(StreamClosedError, match=r"restored .*: ValueError\('unknown"):
                await follower.wait_applied(1)

    run(scene)


def test_a_cancelled_command_does_not_change_the_order_of_commands() -> None:
    async def scene(b: Bench) -> None:
        async with await open_dict(b.streams, "d") as d:
            task = asyncio.ensure_future(d.set("a", 1))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await d.set("b", 2)
            found = dict(d)
        async with await open_dict(b.streams, "d") as d:
            assert dict(d) == found

    run(scene)


@pytest.mark.parametrize(
    ("name", "more"),
    [("n" * 600, {}), ("a//b", {}), ("", {}), ("a b", {}), ("d", {"snapshot_every": -1})],
)
def test_a_name_that_snapshots_cannot_have_is_refused_before_the_stream_is_created(
    name: str, more: dict[str, int]
) -> None:
    async def scene(b: Bench) -> None:
        with pytest.raises(UsageError):
            await open_dict(b.streams, name, **more)
        if not more:
            with pytest.raises(UsageError):
                await follow(b.streams, name, Dictionary())
        assert await b.streams.streams() == []

    run(scene)
