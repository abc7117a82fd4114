"""The contract of the commands that work on streams and namespaces, with real processes."""

from __future__ import annotations

import asyncio
import json
import signal
from base64 import b64decode, b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from quire import blocking, connect
from quire.blocking.background import call
from quire.metadata.tree import Create, Put
from quire.streams.namespace import removal
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.topics.topic_metadata import TopicMetadata
from quire.testing.cluster import LocalCluster
from tests.support.long import long_after
from tests.support.processes.cli import TIMEOUT_S, Quire
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3) as local:
        yield local


@pytest.fixture
def quire(cluster: LocalCluster, request: pytest.FixtureRequest) -> Quire:
    """Run commands with the test's own namespace."""
    quire = Quire(cluster.uri)
    quire.environment["QUIRE_NAMESPACE"] = "/tests/" + request.node.name.partition("[")[0]
    quire("namespace", "create", quire.environment["QUIRE_NAMESPACE"]).ok()
    return quire


def write(quire: Quire, name: str, data: bytes, *arguments: str) -> dict[str, object]:
    """Lines into a stream, made where it is not there; what the command said of it."""
    done = quire("stream", "write", name, "--create", "--json", *arguments, stdin=data)
    found = json.loads(done.ok())
    assert isinstance(found, dict)
    return found


def read(quire: Quire, name: str, *arguments: str) -> list[bytes]:
    return quire("stream", "read", name, *arguments).ok().split(b"\n")[:-1]


def described(quire: Quire, *arguments: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in quire("stream", *arguments, "--json").ok().splitlines()]


def show(quire: Quire, name: str) -> dict[str, object]:
    (found,) = described(quire, "show", name)
    return found


def numbers(first: int, end: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(first, end))


# -- writing and reading ----------------------------------------------------------------------


def test_list_show_and_delete_treat_a_topic_as_one_stream(quire: Quire) -> None:
    created = quire("stream", "create", "eu/clicks", "--partitions", "3", "--set", "retention_s=7d")
    assert "topic eu/clicks created with 3 partitions" in created.err
    write(quire, "other", b"x\n")
    for name, lines in (("eu/clicks/1", b"a\nb\n"), ("eu/clicks/2", b"c\n")):
        write(quire, name, lines)
    assert quire("stream", "list").ok().splitlines() == [b"eu/clicks", b"other"]
    partitions = [f"eu/clicks/{at}" for at in range(3)]
    assert quire("stream", "list", "eu/clicks/").ok().decode().splitlines() == partitions
    assert described(quire, "list", "eu") == [{"name": "eu/clicks", "partitions": 3}]
    (long,) = described(quire, "list", "eu", "--long")
    assert (long["partitions"], long["segments"], long["records"]) == (3, 2, 3)
    assert (long["first"], long["last"]) == (None, None)
    assert str(long["first_time"]) <= str(long["last_time"])
    table = quire("stream", "list", "--long").ok().splitlines()
    assert table[1].split()[:3] == [b"eu/clicks", b"2", b"3"]

    shown = show(quire, "eu/clicks")
    assert (shown["partitions"], shown["records"], shown["ended"]) == (3, 3, False)
    streams = shown["streams"]
    assert isinstance(streams, list)
    assert [(one["name"], one["records"]) for one in streams] == list(zip(partitions, (0, 2, 1)))
    text = quire("stream", "show", "eu/clicks").ok().decode()
    assert text.startswith("topic      eu/clicks\n")
    assert "\n  eu/clicks/2  1 " in text

    for command in (("tail",), ("truncate", "--before", "seq:1"), ("end", "--yes")):
        done = quire("stream", command[0], "eu/clicks", *command[1:])
        done.fails(1, "eu/clicks is a topic in namespace")
    part = quire("stream", "delete", "eu/clicks/0", "--yes")
    part.fails(2, "is a partition of topic eu/clicks")
    quire("stream", "create", "eu/clicks").fails(1, "topic eu/clicks already exists")
    planned = quire("stream", "delete", "eu/clicks", "--dry-run")
    assert "topic eu/clicks (all its partitions) would be deleted" in planned.err
    assert "topic eu/clicks deleted" in quire("stream", "delete", "eu/clicks", "--yes").err
    assert quire("stream", "list").ok().splitlines() == [b"other"]


def test_no_stream_is_written_beside_the_partitions_of_a_topic(quire: Quire) -> None:
    quire("stream", "create", "clicks", "--partitions", "4").ok()
    done = quire("stream", "write", "clicks/9", "--create", stdin=b"x\n")
    done.fails(2, "topic clicks has the partitions 0 to 3. Write to clicks")
    quire("stream", "create", "clicks/4").fails(2, "cannot be the name of a new stream")
    assert len(quire("stream", "list", "clicks/").ok().splitlines()) == 4


def test_a_partly_deleted_topic_is_listed_with_the_command_to_complete_it(
    quire: Quire,
) -> None:
    quire("stream", "create", "clicks", "--partitions", "2").ok()
    write(quire, "clicks/1", b"a\n")
    path = quire.environment["QUIRE_NAMESPACE"]

    async def begin_deletion() -> None:
        async def dies(partition: StreamMetadata, _: object) -> None:
            if partition.paths.name == "clicks/1":
                raise InterruptedError
            await removal.delete_stream(client, partition, b"")

        async with await connect(quire.uri) as client:
            with pytest.raises(InterruptedError):
                await TopicMetadata(client, path).delete("clicks", dies)

    asyncio.run(begin_deletion())
    command = f"To complete the deletion: quire stream delete clicks -n {path}"
    for options in ((), ("--long",)):
        done = quire("stream", "list", *options)
        assert done.ok().splitlines()[-1].startswith(b"clicks")
        assert command in done.err
    expected = {"name": "clicks", "partitions": 2, "deleting": True}
    assert described(quire, "list") == [expected]
    (long,) = described(quire, "list", "--long")
    assert long == {**long, **expected, "records": 1}
    quire("stream", "delete", "clicks", "-n", path, "--yes").ok()
    done = quire("stream", "list")
    assert (done.ok(), done.err) == (b"", "")


def test_existing_streams_become_a_topic(quire: Quire) -> None:
    for number in range(2):
        write(quire, f"clicks/{number}", b"%d\n" % number)
    adopt = ("stream", "create", "clicks", "--adopt")
    quire(*adopt).fails(2, "--adopt needs --partitions")
    quire(*adopt, "--partitions", "3").fails(1, "stream clicks/2, which would be its partition")
    refused = quire("stream", "create", "clicks", "--partitions", "2")
    refused.fails(1, "quire stream create clicks --partitions N --adopt")
    quire(*adopt, "--partitions", "2").ok()
    assert sorted(read(quire, "clicks")) == [b"0", b"1"]


def test_a_topic_is_written_and_read_as_one_stream(quire: Quire) -> None:
    quire("stream", "create", "clicks", "--partitions", "3").ok()
    lines = [b"k%d:%d" % (number % 7, number) for number in range(30)]
    data = b"".join(line + b"\n" for line in lines)
    done = quire("stream", "write", "clicks", "--key-separator", ":", "--json", stdin=data)
    assert json.loads(done.ok()) == {
        "name": "clicks", "partitions": 3, "records": 30, "bytes": 50,
    }  # fmt: skip
    assert sorted(read(quire, "clicks", "--key-separator", ":")) == sorted(lines)
    found = described(quire, "read", "clicks", "--subscription", "billing")
    assert [list(one)[:2] for one in found] == [["partition", "position"]] * 30
    with blocking.connect(quire.uri) as client:
        topic = client.namespace(quire.environment["QUIRE_NAMESPACE"]).topic("clicks")
        for one in found:
            assert one["partition"] == topic.partition_of(b64decode(str(one["key"])))
    assert quire("stream", "write", "clicks", stdin=b"plain\n").ok() == (
        b"topic clicks: 1 record acknowledged\n"
    )
    assert quire("stream", "write", "clicks").ok() == b"topic clicks: 0 records acknowledged\n"
    (more,) = described(quire, "read", "clicks", "--subscription", "billing")
    assert (more["partition"], b64decode(str(more["value"]))) == (0, b"plain")
    assert read(quire, "clicks", "--subscription", "billing") == []
    assert len(read(quire, "clicks", "--limit", "7")) == 7
    assert len(read(quire, "clicks", "--from", "seq:1")) == 31 - 3
    quire("stream", "read", "clicks", "--to", "seq:1").fails(
        2, "--to cannot be used for topic clicks"
    )
    position = quire("stream", "read", "clicks", "--from", "1:0:0")
    position.fails(2, "a position belongs to one partition")
    quire("stream", "write", "clicks", "--token", "t").fails(2, "--token cannot be used")


def test_keys_and_headers_are_written_and_copied(quire: Quire) -> None:
    """Write keys and headers as the guide shows, and copy them through JSON without a loss."""
    lines = b"visitor-8:first\nvisitor-9:sec:ond\nplain\n"
    more = ("--key-separator", ":", "--header", "source=shell")
    write(quire, "clicks", lines, *more)
    write(quire, "clicks", b"without\n")
    assert read(quire, "clicks") == [b"first", b"sec:ond", b"plain", b"without"]
    keyed = [*lines.splitlines(), b"without"]
    assert read(quire, "clicks", "--key-separator", ":") == keyed
    tailed = quire("stream", "tail", "clicks", "-n", "4", "--key-separator", ":").ok()
    assert tailed.splitlines() == keyed
    printed = quire("stream", "read", "clicks", "--json").ok()
    write(quire, "copy", printed, "--format", "json")
    found = described(quire, "read", "copy")
    for line, copy in zip(map(json.loads, printed.splitlines()), found, strict=True):
        for name in ("value", "key", "headers", "event_time"):
            assert (name in line, line.get(name)) == (name in copy, copy.get(name))
    assert found[0]["headers"] == {"source": b64encode(b"shell").decode()}
    assert "key" not in found[3]


@pytest.mark.parametrize(
    "data",
    long_after(
        3,
        (
            b"",
            b"one\ntwo",
            bytes(range(256)) * 3,
            b"\n",
            b"\n\n",
            b"one\ntwo\n",
            b"a\r\n\r\n",
        ),
    ),
    ids=["nothing", "no newline", "any bytes", "empty", "two empty", "newline", "carriage returns"],
)
def test_written_lines_are_read_back(quire: Quire, data: bytes) -> None:
    whole = data if data.endswith(b"\n") or not data else data + b"\n"
    quire("stream", "delete", "lines")
    said = write(quire, "lines", data)
    assert said["records"] == whole.count(b"\n")
    assert said["bytes"] == len(whole) - whole.count(b"\n")
    assert quire("stream", "read", "lines").ok() == whole


def test_stream_write_reports_the_acknowledged_records(quire: Quire) -> None:
    quire("stream", "create", "a").ok()
    done = quire("stream", "write", "a", stdin=b"one\ntwo\n")
    assert done.ok() == b"stream a: 2 records acknowledged, the last at 1:0:1\n"
    assert done.err == ""
    said = write(quire, "a", numbers(0, 5_000))
    assert (said["first"], said["records"], said["next_sequence"]) == ("2:0:0", 5_000, 5_002)
    assert quire("stream", "write", "a").ok() == b"stream a: 0 records acknowledged\n"


def test_a_missing_stream_is_an_error_for_every_command(quire: Quire) -> None:
    for verb in ("write", "read", "tail", "show", "delete", "end", "retain", "set"):
        more = ["roll_bytes=5"] if verb == "set" else []
        done = quire("stream", verb, "missing", *more)
        done.fails(1, "stream missing does not exist")
        assert done.out == b""
    quire("stream", "truncate", "missing", "--before", "1:0:0").fails(1, "stream missing")
    quire("stream", "rename", "missing", "found").fails(1, "stream missing")
    quire("stream", "list", "-n", "/tests/nowhere").fails(1, "/tests/nowhere", "namespace create")


def test_records_can_be_delimited_or_base64(quire: Quire) -> None:
    write(quire, "a", b"one\0two\nlines\0", "--delimiter", r"\0")
    assert quire("stream", "read", "a", "--delimiter", r"\0").ok() == b"one\0two\nlines\0"
    write(quire, "b", b64encode(b"\n\0") + b"\n" + b64encode(b"x") + b"\n", "--base64")
    found = [b64decode(str(one["value"])) for one in described(quire, "read", "b")]
    assert found == [b"\n\0", b"x"]
    assert read(quire, "b", "--format", "hex") == [b"0a00", b"78"]


def test_an_invalid_line_is_refused_after_the_lines_before_it(quire: Quire) -> None:
    """The lines before it are in the stream, and the stream is left in order."""
    data = b"one\n" + b"x" * 1_045_000 + b"\ntwo\n"
    done = quire("stream", "write", "long", "--create", stdin=data)
    done.fails(1, "line 2", "1040364 bytes")
    assert done.out == b"stream long: 1 record acknowledged, the last at 1:0:0\n"
    assert read(quire, "long") == [b"one"]
    done = quire("stream", "write", "base", "--create", "--base64", stdin=b"b25l\n!!\nb25l\n")
    done.fails(1, "line 2", "Base64")
    assert read(quire, "base") == [b"one"]


def test_the_longest_record_is_written_and_read(quire: Quire) -> None:
    data = b"x" * 1_040_364
    write(quire, "longest", data + b"\n" + b"short\n" + data)
    assert read(quire, "longest") == [data, b"short", data]


def test_records_are_printed_as_json(quire: Quire) -> None:
    write(quire, "a", b"one\n\xff\n")
    found = described(quire, "read", "a")
    assert [one["position"] for one in found] == ["1:0:0", "1:0:1"]
    assert [one["sequence"] for one in found] == [0, 1]
    assert [b64decode(str(one["value"])) for one in found] == [b"one", b"\xff"]
    assert found[0]["txid"] == found[1]["txid"]


def test_reads_start_and_stop_at_the_requested_positions(quire: Quire) -> None:
    """Ways to say where to begin and to stop, in a stream of four segments."""
    write(quire, "a", numbers(0, 1_000), "--roll-every", "300")
    records = described(quire, "read", "a")
    assert [segment["records"] for segment in show(quire, "a")["segments"]] == [300, 300, 300, 100]  # type: ignore[attr-defined]
    at = str(records[650]["position"])
    hence = datetime.now(UTC) + timedelta(hours=1)
    for arguments, wanted in [
        ((), range(1_000)),
        (("--from", "earliest", "--limit", "3"), range(3)),
        (("--limit", "0"), range(0)),
        (("--from", "latest"), range(0)),
        (("--from", at), range(650, 1_000)),
        (("--from", at, "--limit", "2"), range(650, 652)),
        (("--from", "seq:299", "--limit", "2"), range(299, 301)),
        (("--to", "seq:2"), range(2)),
        (("--from", "seq:998", "--to", "latest"), range(998, 1_000)),
        (("--from", "seq:100000"), range(0)),
        (("--from", "time:2020-02-02T00:00:00Z", "--limit", "1"), range(1)),
        (("--from", f"time:{hence.isoformat()}"), range(0)),
        (("--from", f"txid:{records[0]['txid']}", "--limit", "1"), range(1)),
    ]:
        assert read(quire, "a", *arguments) == [b"%d" % n for n in wanted], arguments


def test_a_position_beyond_the_end_is_reported(quire: Quire) -> None:
    """An empty output with status 0 once looked like an empty stream."""
    write(quire, "short", numbers(0, 100), "--create", "--roll-every", "40")
    for place in ("seq:100", "9:0:0", "time:2099-01-01T00:00:00+00:00", f"txid:{2**62}"):
        done = quire("stream", "read", "short", "--from", place)
        assert (done.status, done.out) == (0, b"")
        assert done.err == (
            f"stream short has no record at or after {place}: it ends at position 3:0:20. To wait "
            "for one, use --follow\n"
        )
    for place in ("latest", "seq:99", "3:0:19", "earliest"):
        assert quire("stream", "read", "short", "--from", place).err == ""
    assert quire("stream", "read", "short", "--from", "seq:200", "--limit", "0").err == ""
    done = quire("stream", "read", "short", "--from", "seq:50", "--to", "1:0:20")
    assert done.err.startswith("nothing was printed: the place of --to, position 1:0:20, is not")
    done = quire("stream", "read", "short", "--from", "seq:50", "--to", "seq:20")
    assert (done.status, done.out) == (2, b"")
    assert done.err.startswith("error: the end seq:20 is before the start seq:50, so that nothing")
    # Nobody asked for this place: the subscription has read everything.
    quire("stream", "read", "short", "--subscription", "mine").ok()
    assert quire("stream", "read", "short", "--subscription", "mine", "--from", "seq:7").err == ""
    with quire.start("stream", "read", "short", "--from", "seq:500", "-f") as following:
        assert following.error_line().endswith("The command waits for one")
    done = quire("stream", "truncate", "short", "--before", "seq:500", "--dry-run")
    assert "so this would drop every record that can be dropped" in done.err
    assert "drop every" not in quire("stream", "truncate", "short", "--before", "latest").err


def test_reading_does_not_fence(quire: Quire) -> None:
    with quire.start("stream", "write", "a", "--create") as writer:
        writer.type(b"one\n")
        wait_for(lambda: quire("stream", "read", "a").out == b"one\n", "reading what was typed")
        (segment,) = show(quire, "a")["segments"]  # type: ignore[misc]
        assert (segment["state"], segment["records"]) == ("in progress", 1)
        writer.type(b"two\n")
        assert b"2 records acknowledged" in writer.end().ok()
    assert read(quire, "a") == [b"one", b"two"]


def test_a_lone_line_reaches_a_follower_at_once(quire: Quire) -> None:
    """Line by line, each while standard input is open; the end of the stream ends the reader."""
    quire("stream", "create", "a").ok()
    with (
        quire.start("stream", "write", "a") as writer,
        quire.start("stream", "read", "a", "--follow") as reader,
    ):
        for number in range(5):
            writer.type(b"line %d\n" % number)
            assert reader.line() == f"line {number}"
        writer.end().ok()
        quire("stream", "end", "a").ok()
        assert reader.process.wait(TIMEOUT_S) == 0


def test_tail_prints_the_last_records(quire: Quire) -> None:
    write(quire, "a", numbers(0, 100), "--roll-every", "30")
    tail = ("stream", "tail", "a")
    assert quire(*tail).ok() == numbers(90, 100)
    assert quire(*tail, "-n", "3").ok() == numbers(97, 100)
    assert quire(*tail, "-n", "45").ok() == numbers(55, 100)
    assert quire(*tail, "-n", "1000").ok() == numbers(0, 100)
    assert quire(*tail, "-n", "0").ok() == b""
    with quire.start(*tail, "-n", "1", "-f") as reader:
        assert reader.line() == "99"
        write(quire, "a", b"more\n")
        assert reader.line() == "more"
        reader.process.send_signal(signal.SIGINT)
        assert reader.process.wait(TIMEOUT_S) == 130
        assert reader.error_line() == "interrupted"
    quire("stream", "create", "empty").ok()
    assert quire("stream", "tail", "empty").ok() == b""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_a_signal_ends_a_writer(quire: Quire, number: signal.Signals, status: int) -> None:
    """Typed lines are acknowledged and reported, and the segment is completed."""
    name = number.name
    with quire.start("stream", "write", name, "--create") as writer:
        writer.type(b"one\ntwo\nunfinished")
        wait_for(lambda: len(quire("stream", "read", name).out.split()) == 2, "what was typed")
        done = writer.end(number)
    assert done.status == status
    assert done.out.startswith(b"stream %s: 2 records acknowledged" % name.encode())
    assert done.err == "interrupted: the input was ended\n"
    assert [one["state"] for one in show(quire, name)["segments"]] == ["completed"]  # type: ignore[attr-defined]


def test_a_fenced_writer_reports_what_was_acknowledged(quire: Quire) -> None:
    with quire.start("stream", "write", "a", "--create") as old:
        old.type(b"one\n")
        wait_for(lambda: quire("stream", "read", "a").out == b"one\n", "reading what was typed")
        write(quire, "a", b"two\n")
        old.type(b"late\n")
        done = old.end()
        done.fails(1, "taken over", "1 record acknowledged")
    assert read(quire, "a") == [b"one", b"two"]


def test_a_fencing_token_refuses_other_writers(quire: Quire, cluster: LocalCluster) -> None:
    with (
        blocking.connect(cluster.uri) as client,
        client.namespace(quire.environment["QUIRE_NAMESPACE"]) as streams,
        streams.open_writer("a", create=True) as writer,
    ):
        writer.append(b"one")
        writer.set_fencing_token("t")
    quire("stream", "write", "a", stdin=b"no\n").fails(1, "fencing token", "0 records")
    write(quire, "a", b"yes\n", "--token", "t")
    assert read(quire, "a") == [b"one", b"yes"]


def test_a_killed_writer_is_followed_by_another(quire: Quire) -> None:
    with quire.start("stream", "write", "a", "--create") as writer:
        writer.type(b"one\n")
        wait_for(lambda: quire("stream", "read", "a").out == b"one\n", "reading what was typed")
        writer.process.kill()
        writer.process.wait(TIMEOUT_S)
    write(quire, "a", b"two\n")
    assert read(quire, "a") == [b"one", b"two"]
    assert [one["sequence"] for one in described(quire, "read", "a")] == [0, 1]


def test_a_closed_output_pipe_ends_a_read_without_an_error(quire: Quire) -> None:
    """`quire stream read NAME | head -2`: nothing is said about it."""
    write(quire, "a", numbers(0, 300_000))
    with quire.start("stream", "read", "a") as reader:
        assert [reader.line(), reader.line()] == ["0", "1"]
        assert reader.process.stdout is not None
        reader.process.stdout.close()
        assert reader.process.wait(TIMEOUT_S) == 141
        assert reader.process.stderr is not None
        assert reader.process.stderr.read() == b""


# -- subscriptions ----------------------------------------------------------------------------


def test_a_subscription_continues_at_its_position(quire: Quire) -> None:
    write(quire, "a", numbers(0, 100), "--roll-every", "40")
    subscribed = ("--subscription", "s")
    assert read(quire, "a", *subscribed, "--limit", "50") == [b"%d" % n for n in range(50)]
    (found,) = show(quire, "a")["subscriptions"]  # type: ignore[misc]
    assert found == {"name": "s", "position": "2:0:10", "lag": 50, "missed": False}
    assert read(quire, "a", *subscribed) == [b"%d" % n for n in range(50, 100)]
    assert read(quire, "a", *subscribed) == []
    (found,) = show(quire, "a")["subscriptions"]  # type: ignore[misc]
    assert found["lag"] == 0
    write(quire, "a", b"more\n")
    (found,) = show(quire, "a")["subscriptions"]  # type: ignore[misc]
    assert found["lag"] == 1
    assert read(quire, "a", "--subscription", "new", "--from", "seq:99") == [b"99", b"more"]
    assert read(quire, "a", *subscribed) == [b"more"]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_a_signal_stores_the_position_of_a_subscription(
    quire: Quire, number: signal.Signals, status: int
) -> None:
    name = number.name
    write(quire, name, numbers(0, 10))
    command = ("stream", "read", name, "--subscription", "s", "--follow")
    with quire.start(*command) as reader:
        assert [reader.line() for _ in range(10)] == [str(n) for n in range(10)]
        write(quire, name, b"more\n")
        assert reader.line() == "more"
        reader.process.send_signal(number)
        assert reader.process.wait(TIMEOUT_S) == status
    (found,) = show(quire, name)["subscriptions"]  # type: ignore[misc]
    # 1: the signal came between printing the last one and noting it.
    assert found["lag"] in (0, 1)
    with quire.start(*command) as reader:

        def caught_up() -> bool:
            (now,) = show(quire, name)["subscriptions"]  # type: ignore[misc]
            return bool(now["lag"] == 0)

        wait_for(caught_up, "the position while nothing more comes")


# -- truncation and retention -----------------------------------------------------------------


def test_a_truncation_is_reported(quire: Quire) -> None:
    write(quire, "a", numbers(0, 100), "--roll-every", "40")
    position = described(quire, "read", "a", "--from", "seq:50", "--limit", "1")[0]["position"]
    truncate = ("stream", "truncate", "a", "--before", "seq:50", "--json")
    planned = json.loads(quire(*truncate, "--dry-run").ok())
    assert read(quire, "a") == [b"%d" % n for n in range(100)]
    done = quire(*truncate)
    said = json.loads(done.ok())
    assert planned == {**said, "dry_run": True}
    assert (said["before"], len(said["freed_ledgers"])) == (position, 1)
    quire("ledger", "show", str(said["freed_ledgers"][0])).fails(1, "ledger")
    assert read(quire, "a") == [b"%d" % n for n in range(50, 100)]
    quire("stream", "read", "a", "--from", "1:0:0").fails(1, "truncated", f"{position}", "--on-gap")
    done = quire("stream", "read", "a", "--from", "1:0:0", "--limit", "1", "--on-gap", "deliver")
    assert (done.ok(), done.err.count("gap: ")) == (b"50\n", 1)
    gap, *_ = described(quire, "read", "a", "--from", "1:0:0", "--on-gap", "deliver")
    assert (gap["gap"], gap["first"]) == ("truncated", "1:0:0")
    skipped = quire("stream", "read", "a", "--from", "1:0:0", "--limit", "1", "--on-gap", "skip")
    assert (skipped.ok(), skipped.err) == (b"50\n", "")
    (line,) = [one for one in described(quire, "list", "--long") if one["name"] == "a"]
    assert (line["records"], line["first"], line["segments"]) == (50, position, 2)
    assert quire("stream", "tail", "a", "-n", "1000").ok() == numbers(50, 100)


def test_retain_deletes_records_by_the_settings(quire: Quire) -> None:
    for name in ("a", "b"):
        write(quire, name, numbers(0, 100), "--roll-every", "40")
    quire("stream", "set", "a", "retention_bytes=1").ok()
    planned = json.loads(quire("stream", "retain", "a", "--json", "--dry-run").ok())
    assert read(quire, "a") == [b"%d" % n for n in range(100)]
    said = json.loads(quire("stream", "retain", "a", "--json").ok())
    assert planned == {**said, "dry_run": True}
    assert len(said["freed_ledgers"]) == 2
    assert read(quire, "b") == [b"%d" % n for n in range(100)]
    quire("namespace", "set", quire.environment["QUIRE_NAMESPACE"], "retention_bytes=1").ok()
    freed = {one["name"]: one["freed_ledgers"] for one in described(quire, "retain", "--all")}
    assert (len(freed["a"]), len(freed["b"])) == (0, 2)  # type: ignore[arg-type]


# -- streams and namespaces -------------------------------------------------------------------


def test_streams_are_created_listed_renamed_and_deleted(quire: Quire) -> None:
    for name in ("b", "a/x", "a/y"):
        quire("stream", "create", name).ok()
    quire("stream", "create", "b").fails(1, "stream b already exists")
    assert quire("stream", "list").ok() == b"a/x\na/y\nb\n"
    assert quire("stream", "list", "a/").ok() == b"a/x\na/y\n"
    write(quire, "b", b"one\n")
    quire("stream", "rename", "b", "c").ok()
    quire("stream", "rename", "c", "a/x").fails(1, "a/x")
    assert read(quire, "c") == [b"one"]
    ledgers = {segment["ledger_id"] for segment in show(quire, "c")["segments"]}  # type: ignore[attr-defined]
    done = quire("stream", "delete", "c")
    assert (done.ok(), done.err) == (b"", "stream c deleted\n")
    assert quire("stream", "list").ok() == b"a/x\na/y\n"
    for ledger_id in ledgers:
        quire("ledger", "show", str(ledger_id)).fails(1, "ledger")


def test_a_list_is_printed_in_columns(quire: Quire) -> None:
    write(quire, "a", b"one\ntwo\n")
    quire("stream", "create", "empty").ok()
    head, a, empty = quire("stream", "list", "-l").ok().decode().splitlines()
    assert head.split() == ["NAME", "SEGMENTS", "RECORDS", "BYTES", "FIRST", "AT", "LAST", "AT"]
    name, segments, records, _, first, _, last, _ = a.split()
    assert (name, segments, records, first, last) == ("a", "1", "2", "1:0:0", "1:0:1")
    assert empty.split() == ["empty", "0", "0", "0", "-", "-", "-", "-"]


def test_settings_are_shown_with_their_origin(quire: Quire) -> None:
    def settings(*command: str) -> dict[str, tuple[object, str]]:
        found = json.loads(quire(*command, "--json").ok())["settings"]
        return {one["name"]: (one["value"], one["from"]) for one in found}

    path = quire.environment["QUIRE_NAMESPACE"]
    quire("namespace", "create", path, "--set", "roll_bytes=1000", "--set", "ack_quorum=3").ok()
    quire("stream", "create", "a", "--set", "roll_bytes=2000", "--set", "compression=lz4").ok()
    found = settings("stream", "show", "a")
    assert found["roll_bytes"] == (2_000, "stream")
    assert found["compression"] == ("lz4", "stream")
    assert found["ack_quorum"] == (3, "inherited")
    assert found["write_quorum"] == (3, "default")
    quire("stream", "set", "a", "--unset", "roll_bytes", "explicit_truncation=true").ok()
    found = settings("stream", "show", "a")
    assert found["roll_bytes"] == (1_000, "inherited")
    assert found["explicit_truncation"] == (True, "stream")
    quire("namespace", "set", path, "--unset", "roll_bytes").ok()
    assert settings("namespace", "show", path)["roll_bytes"] == (268435456, "default")
    assert settings("namespace", "show", path)["ack_quorum"] == (3, "namespace")
    set_ = ("stream", "set", "a")
    quire(*set_, "write_quorum=4").fails(2, "write_quorum is 4")
    quire(*set_, "digest=md5").fails(2, "md5")
    assert settings("stream", "show", "a")["write_quorum"] == (3, "default")
    text = quire("stream", "show", "a").ok().decode()
    assert "  compression          lz4        stream\n" in text


def test_namespace_create_reports_an_existing_namespace(quire: Quire) -> None:
    path = quire.environment["QUIRE_NAMESPACE"] + "/new"
    said = [
        quire("namespace", "create", path, *settings).err
        for settings in ((), (), ("--set", "ack_quorum=2"))
    ]
    assert said == [
        f"namespace {path} created\n",
        f"namespace {path} exists already\n",
        f"namespace {path} exists already; the settings were added to its own\n",
    ]


def test_a_namespace_inherits_settings(quire: Quire) -> None:
    path = quire.environment["QUIRE_NAMESPACE"]
    quire("namespace", "create", path, "--set", "ensemble_size=1", "--set", "write_quorum=1",
          "--set", "ack_quorum=1").ok()  # fmt: skip
    inner = quire("namespace", "create", f"{path}/inner", "--set", "roll_bytes=5")
    assert (inner.status, inner.err) == (0, f"namespace {path}/inner created\n")
    quire("stream", "create", "a", "-n", f"{path}/inner").ok()
    write(quire, "a", b"one\n", "-n", f"{path}/inner")
    (segment,) = described(quire, "show", "a", "-n", f"{path}/inner")[0]["segments"]  # type: ignore[misc]
    ledger = json.loads(quire("ledger", "show", str(segment["ledger_id"]), "--json").ok())
    assert (ledger["ensemble"], ledger["ack_quorum"]) == (1, 1)
    listed = quire("namespace", "list").ok().decode().splitlines()
    assert {path, f"{path}/inner"} <= set(listed)
    assert listed == sorted(listed)


def test_the_default_namespace_is_created_on_demand(quire: Quire) -> None:
    del quire.environment["QUIRE_NAMESPACE"]
    write(quire, "first", b"one\n")
    assert "/streams" in quire("namespace", "list").ok().decode().splitlines()
    assert read(quire, "first", "--namespace", "/streams") == [b"one"]
    quire("stream", "create", "a", "-n", "/other").fails(1, "/other")
    assert "/other" not in quire("namespace", "list").ok().decode().splitlines()


def test_an_ended_stream_refuses_writes(quire: Quire) -> None:
    write(quire, "a", b"one\n")
    for verb, what in (("end", "ended"), ("delete", "deleted")):
        planned = quire("stream", verb, "a", "--dry-run")
        assert (planned.ok(), f"would be {what}" in planned.err) == (b"", True)
    assert show(quire, "a")["ended"] is False
    done = quire("stream", "end", "a")
    assert (done.ok(), done.err) == (b"", "stream a ended after 1 record\n")
    quire("stream", "write", "a", stdin=b"two\n").fails(
        1, "stream a cannot be opened for writing: it was ended"
    )
    assert read(quire, "a", "--follow") == [b"one"]
    assert show(quire, "a")["ended"] is True


# -- ledgers that nobody names ----------------------------------------------------------------


def test_an_audit_finds_ledgers_that_no_stream_names(quire: Quire, cluster: LocalCluster) -> None:
    """Ledgers of streams that were renamed, of other applications, and young ones are left. Writers
    that other tests killed may have left some, too."""
    write(quire, "a", numbers(0, 10))
    quire("stream", "rename", "a", "renamed").ok()
    stream = quire.environment["QUIRE_NAMESPACE"] + "/a"
    custom = {"application": b"quire", "component": b"stream", "stream": stream.encode()}
    with blocking.connect(cluster.uri) as client:
        client.create_ledger(custom=custom).abandon()
        with client.create_ledger(custom=custom) as closed:
            closed.append(b"x")
        with client.create_ledger(custom={"application": b"other", "stream": b"/a"}):
            pass
    audit = ("stream", "audit", "--older-than", "0")
    assert described(quire, "audit") == []
    listed = described(quire, *audit[1:])
    found = [one for one in listed if one["stream"] == stream]
    assert len(found) == 2
    assert not any(one["deleted"] for one in listed)
    lines = [f"{one['ledger_id']} {one['stream']}" for one in listed]
    assert quire(*audit, "--dry-run").ok().decode().splitlines() == lines
    done = quire(*audit, "--delete")
    assert done.ok().decode().splitlines() == lines
    assert done.err.endswith(f" {len(listed)} deleted\n")
    assert described(quire, *audit[1:]) == []
    for one in found:
        quire("ledger", "show", str(one["ledger_id"])).fails(1, "ledger")
    assert len(read(quire, "renamed")) == 10


def test_an_unreadable_stream_does_not_stop_a_listing(quire: Quire, cluster: LocalCluster) -> None:
    path = quire.environment["QUIRE_NAMESPACE"]
    for name in ("apple", "melon", "pear"):
        write(quire, name, numbers(0, 10))
    root = f"{path}/melon/<default>"
    with blocking.connect(cluster.uri) as client:
        tree = client.aio.metadata.tree
        (segment,) = call(tree.children(f"{root}/ledgers"))
        stored = call(tree.read(f"{root}/ledgers/{segment}")).value
        call(tree.commit(Put(f"{root}/ledgers/{segment}", b"rubbish")))
        done = quire("stream", "list", "--long", "--json")
        assert [json.loads(line)["name"] for line in done.out.splitlines()] == ["apple", "pear"]
        done.fails(1, "stream melon: ", f"{root}/ledgers/{segment}")
        audit = quire("stream", "audit", "--older-than", "0", "--delete")
        assert audit.status == 1
        assert f"error: stream {path}/melon: " in audit.err
        call(tree.commit(Put(f"{root}/ledgers/{segment}", stored)))
        call(tree.commit(Create(f"{path}/pear/<default>/subscribers")))
        call(tree.commit(Create(f"{path}/pear/<default>/subscribers/mine", b"rubbish")))
    assert len(read(quire, "melon")) == 10
    shown = quire("stream", "show", "pear").ok().decode()
    assert "mine" in shown
    assert "unreadable" in shown
