"""The contract of the commands that work on ledgers, with real processes."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import blocking
from quire.blocking import connect
from quire.testing.cluster import LocalCluster
from tests.support.long import long_after
from tests.support.processes.cli import COMMAND, TIMEOUT_S, Quire, Running
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3) as local:
        yield local


@pytest.fixture
def quire(cluster: LocalCluster) -> Quire:
    return Quire(cluster.uri)


def lines_of_many_sizes() -> bytes:
    chance = random.Random(5)
    lines = [chance.randbytes(chance.randrange(2_000)).replace(b"\n", b"") for _ in range(3_000)]
    lines += [b""] * 200 + [b"x" * 1_500_000] + [b"%d" % number for number in range(50_000)]
    return b"\n".join(lines)


INPUTS = {
    "nothing": b"",
    "no newline at the end": b"one\ntwo",
    "many sizes": lines_of_many_sizes(),
    "an empty line": b"\n",
    "empty lines": b"\n\n\n",
    "a newline at the end": b"one\ntwo\n",
    "an empty line at the end": b"one\n\n",
    "carriage returns": b"one\r\n\r\ntwo\r",
    "any bytes": bytes(range(256)) * 3,
    "no UTF-8": b"\xff\xfe\n\xc3\n\x00\n",
}


@pytest.mark.parametrize("data", long_after(3, INPUTS.values()), ids=INPUTS.keys())
def test_written_lines_are_read_back(quire: Quire, data: bytes) -> None:
    ledger_id = quire.write(data)
    whole = data if data.endswith(b"\n") or not data else data + b"\n"
    assert quire("ledger", "read", ledger_id).ok() == whole
    shown = json.loads(quire("ledger", "show", ledger_id, "--json").ok())
    assert shown["state"] == "CLOSED"
    assert shown["last_entry_id"] == whole.count(b"\n") - 1
    assert shown["length"] == len(whole) - whole.count(b"\n")


@pytest.mark.parametrize(
    ("data", "held"),
    [(b"", "0 entries, 0 bytes"), (b"a\n", "1 entry, 1 byte"), (b"a\nbc\n", "2 entries, 3 bytes")],
)
def test_write_reports_the_number_of_entries_and_bytes(
    quire: Quire, data: bytes, held: str
) -> None:
    done = quire("ledger", "write", stdin=data)
    assert done.err == f"ledger {done.out.decode().strip()} closed: {held}\n"


@pytest.mark.parametrize(
    ("shape", "digest"),
    long_after(
        2, [((3, 2, 2), "crc32"), ((2, 2, 1), "HMAC"), ((1, 1, 1), "dummy"), ((3, 3, 3), "crc32c")]
    ),
)
def test_quorums_and_digests(quire: Quire, shape: tuple[int, int, int], digest: str) -> None:
    data = b"".join(b"%d\n" % number for number in range(2_000))
    ensemble, write_quorum, ack_quorum = map(str, shape)
    ledger_id = quire.write(
        data, "--ensemble", ensemble, "--write-quorum", write_quorum, "--ack-quorum", ack_quorum,
        "--digest", digest, "--password", "secret", "--custom", "a=b=c", "--custom", "empty=",
    )  # fmt: skip
    assert quire("ledger", "read", ledger_id, "--password", "secret").ok() == data
    shown = json.loads(quire("ledger", "show", ledger_id, "--json").ok())
    assert (shown["ensemble"], shown["write_quorum"], shown["ack_quorum"]) == shape
    assert shown["digest"] == digest.upper()
    assert shown["custom"] == {"a": "b=c", "empty": ""}


def type_until_seen(quire: Quire, writer: Running, ledger_id: str, data: bytes) -> None:
    """Type `data`, which begins with the line "one", until a reader sees that line.

    Readers learn from later entries that an entry is acknowledged, so further lines are needed.
    """
    writer.type(data)

    def seen() -> bool:
        writer.type(b"more\n")
        return quire("ledger", "read", ledger_id).ok().startswith(b"one\n")

    wait_for(seen, "reading what was typed")


def state(quire: Quire, ledger_id: str) -> str:
    found = json.loads(quire("ledger", "show", ledger_id, "--json").ok())["state"]
    assert isinstance(found, str)
    return found


def test_write_prints_the_id_first_and_appends_each_line_at_once(quire: Quire) -> None:
    """Both are seen while standard input is open."""
    with quire.start("ledger", "write") as writer:
        ledger_id = writer.line()
        assert ledger_id.isdecimal()
        assert state(quire, ledger_id) == "OPEN"
        type_until_seen(quire, writer, ledger_id, b"one\n")
        writer.type(b"last")
        assert writer.end().ok() == b""
    found = quire("ledger", "read", ledger_id).ok().split(b"\n")
    assert (found[0], found[-2:]) == (b"one", [b"last", b""])
    assert set(found[1:-2]) == {b"more"}


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_a_signal_closes_the_ledger(quire: Quire, number: signal.Signals, status: int) -> None:
    with quire.start("ledger", "write") as writer:
        ledger_id = writer.line()
        type_until_seen(quire, writer, ledger_id, b"one\ntwo\n")
        writer.type(b"unfinished")
        done = writer.end(number)
    assert (done.status, done.out) == (status, b"")
    assert re.fullmatch(rf"interrupted: ledger {ledger_id} closed: [\d,]+ entries, .*\n", done.err)
    assert state(quire, ledger_id) == "CLOSED"
    found = quire("ledger", "read", ledger_id).ok().splitlines()
    assert found[:2] == [b"one", b"two"]
    assert set(found[2:]) == {b"more"}


def test_ctrl_c_ends_a_reader(quire: Quire) -> None:
    """The reader is blocked because nobody reads its output."""
    ledger_id = quire.write(b"x" * 100_000 + b"\n" + b"y\n" * 500_000)
    with quire.start("ledger", "read", ledger_id) as reader:
        assert reader.line() == "x" * 100_000
        reader.process.send_signal(signal.SIGINT)
        assert reader.process.wait(TIMEOUT_S) == 130
        assert reader.error_line() == "interrupted"
        assert reader.error_line() == ""


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ((), range(1_000)),
        (("--first-entry", "0", "--last-entry", "0"), range(1)),
        (("--first-entry", "990"), range(990, 1_000)),
        (("--first-entry", "999", "--last-entry", "999"), range(999, 1_000)),
        (("--last-entry", "4"), range(5)),
        (("--first-entry", "1000"), range(0)),
    ],
)
def test_bounds_are_inclusive(quire: Quire, bounds: tuple[str, ...], wanted: range) -> None:
    ledger_id = quire.write(b"".join(b"%d\n" % number for number in range(1_000)))
    found = quire("ledger", "read", ledger_id, *bounds).ok()
    assert found == b"".join(b"%d\n" % number for number in wanted)


def test_the_former_names_of_the_bounds_work_with_a_warning(quire: Quire) -> None:
    ledger_id = quire.write(b"one\ntwo\nthree\n")
    done = quire("ledger", "read", ledger_id, "--first", "1", "--last=1")
    assert done.ok() == b"two\n"
    assert done.err.splitlines() == [
        "warning: --first is deprecated: use --first-entry",
        "warning: --last is deprecated: use --last-entry",
    ]


def test_write_prints_its_result_as_json(quire: Quire) -> None:
    """`ledger write` was the only writing command without --json."""
    found = json.loads(quire("ledger", "write", "--json", stdin=b"one\ntwo\n").ok())
    ledger_id = found.pop("ledger_id")
    assert found == {"state": "CLOSED", "entries": 2, "last_entry_id": 1, "length": 6}
    shown = json.loads(quire("ledger", "show", str(ledger_id), "--json").ok())
    assert {key: shown[key] for key in ("state", "last_entry_id", "length")} == {
        key: found[key] for key in ("state", "last_entry_id", "length")
    }


def completed(quire: Quire, words: str, **environment: str) -> list[str]:
    """Return what the shell offers after these words. The last one is incomplete, or ''."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    done = quire(**asked, **environment, _QUIRE_COMPLETE="bash_complete")
    assert (done.status, done.err) == (0, "")
    return [line.removeprefix("plain,") for line in done.out.decode().split()]


def test_the_shell_completes_ids_and_names(quire: Quire) -> None:
    ledger_id = quire.write(b"one\n")
    assert ledger_id in completed(quire, "quire ledger read ")
    assert completed(quire, f"quire ledger delete {ledger_id} {ledger_id}") == []
    quire("stream", "write", "completion-1", "--create", stdin=b"one\n").ok()
    assert completed(quire, "quire stream read comp") == ["completion-1"]
    assert completed(quire, "quire stream read -n /str") == ["/streams"]
    quire("stream", "create", "topic-4", "--partitions", "2").ok()
    topic = ["topic-4", "topic-4/0", "topic-4/1"]
    assert completed(quire, "quire stream write top") == topic
    quire("object", "put", "-", "completion/2", stdin=b"one").ok()
    assert completed(quire, "quire object get completion/") == ["completion/2"]
    with blocking.connect(quire.uri) as client:
        client.datasets.publish("completion-3", [])
    assert completed(quire, "quire dataset show comp") == ["completion-3"]
    bookies = quire("cluster", "bookies").ok().decode().split()[::3]
    assert completed(quire, "quire bookie decommission ") == sorted(bookies)
    assert completed(quire, "quire cluster pause recover ") == sorted(bookies)


def test_completion_without_a_cluster_is_silent(quire: Quire) -> None:
    for uri in ("", "sqlite:////nowhere/metadata.db", "zk://127.0.0.1:1/ledgers", "nonsense"):
        assert completed(quire, "quire ledger read ", QUIRE_METADATA=uri) == []


def test_invalid_bounds_are_refused(quire: Quire) -> None:
    ledger_id = quire.write(b"one\ntwo\n")
    read = ("ledger", "read", ledger_id)
    quire(*read, "--last-entry", "2").fails(1, f"ledger {ledger_id}", "entry 1")
    quire(*read, "--first-entry", "7").fails(1, f"ledger {ledger_id}", "entry 1")
    quire(*read, "--first-entry", "1", "--last-entry", "0").fails(2, "--first-entry 1")


def test_entries_are_printed_as_json(quire: Quire) -> None:
    ledger_id = quire.write(b"one\n\xff\n\n")
    lines = quire("ledger", "read", ledger_id, "--json").ok().splitlines()
    found = [json.loads(line) for line in lines]
    assert [(e["ledger_id"], e["entry_id"]) for e in found] == [
        (int(ledger_id), number) for number in range(3)
    ]
    assert [b64decode(e["value"]) for e in found] == [b"one", b"\xff", b""]


def test_reading_does_not_fence(quire: Quire) -> None:
    with quire.start("ledger", "write") as writer:
        ledger_id = writer.line()
        type_until_seen(quire, writer, ledger_id, b"one\n")
        assert state(quire, ledger_id) == "OPEN"
        writer.end().ok()


@pytest.mark.parametrize("command", [("read", "--recover"), ("recover",)], ids=" ".join)
def test_recovery_fences_the_writer(quire: Quire, command: tuple[str, ...]) -> None:
    with quire.start("ledger", "write") as writer:
        ledger_id = writer.line()
        type_until_seen(quire, writer, ledger_id, b"one\n")
        quire("ledger", command[0], ledger_id, *command[1:]).ok()
        assert state(quire, ledger_id) == "CLOSED"
        closed = quire("ledger", "read", ledger_id).ok()
        writer.type(b"late\n")
        writer.end().fails(1, f"ledger {ledger_id}")
    assert closed.startswith(b"one\n")
    assert b"late" not in closed
    assert quire("ledger", "read", ledger_id).ok() == closed


def test_the_option_for_byzantine_bookies_applies_to_read_and_recover(quire: Quire) -> None:
    """Copies are compared. No bookie lies here, so everything is as without the option."""
    with quire.start("ledger", "write") as writer:
        ledger_id = writer.line()
        type_until_seen(quire, writer, ledger_id, b"one\n" + b"two\n" * 1_000)
        acknowledged = quire("ledger", "read", ledger_id, "--assume-liars", "1").ok()
        writer.process.kill()
        writer.process.wait(TIMEOUT_S)
    for command in ("read", "recover"):
        refused = quire("ledger", command, ledger_id, "--assume-liars", "2")
        refused.fails(2, "must be from 0 to 1 with an ack quorum of 2, not 2")
    assert state(quire, ledger_id) == "OPEN"
    quire("ledger", "recover", ledger_id, "--assume-liars", "1").ok()
    assert state(quire, ledger_id) == "CLOSED"
    found = quire("ledger", "read", ledger_id, "--assume-liars", "1").ok()
    assert found == quire("ledger", "read", ledger_id).ok()
    assert found.startswith(acknowledged)


def test_a_killed_writer_is_recovered(quire: Quire) -> None:
    with quire.start("ledger", "write") as writer:
        ledger_id = writer.line()
        type_until_seen(quire, writer, ledger_id, b"one\n" + b"two\n" * 10_000)
        read = quire("ledger", "read", ledger_id)
        acknowledged, last = read.ok(), len(read.out.splitlines()) - 1
        assert f"ledger {ledger_id} is open: entry {last} is the last one known" in read.err
        bounded = quire("ledger", "read", ledger_id, "--last-entry", "0")
        assert (bounded.ok(), bounded.err) == (b"one\n", "")
        writer.process.kill()
        writer.process.wait(TIMEOUT_S)
    out = quire("ledger", "recover", ledger_id, "--json").ok()
    assert json.loads(out)["state"] == "CLOSED"
    found = quire("ledger", "read", ledger_id).ok()
    assert found.startswith(acknowledged)
    again = quire("ledger", "recover", ledger_id)
    assert (again.ok(), quire("ledger", "read", ledger_id).ok()) == (b"", found)


def test_a_wrong_password_is_refused(quire: Quire) -> None:
    ledger_id = quire.write(b"one\n", "--password", "right")
    for password in ("wrong", ""):
        done = quire("ledger", "read", ledger_id, QUIRE_PASSWORD=password)
        done.fails(1, "password", f"ledger {ledger_id}")
        assert done.out == b""
    assert quire("ledger", "read", ledger_id, "--password", "right").ok() == b"one\n"


def test_a_password_comes_from_the_option_the_file_or_the_environment(
    quire: Quire, tmp_path: Path
) -> None:
    """The option comes first, then the file, then the environment."""
    file = tmp_path / "password"
    file.write_bytes(b"right\n")
    file.chmod(0o600)
    ledger_id = quire.write(b"one\n", "--password-file", str(file))
    read = ("ledger", "read", ledger_id)
    for arguments, variable in (
        (("--password-file", str(file)), "wrong"),
        ((), "right"),
    ):
        done = quire(*read, *arguments, QUIRE_PASSWORD=variable)
        assert (done.ok(), done.err) == (b"one\n", "")
    done = quire(*read, "--password", "right", QUIRE_PASSWORD="wrong")
    assert done.ok() == b"one\n"
    assert done.err == (
        "warning: other users of this machine can see --password: use --password-file or "
        "QUIRE_PASSWORD instead\n"
    )
    quire(*read, "--password-file", str(file), "--password", "right").fails(2, "not both")
    quire(*read, "--password-file", str(tmp_path / "missing")).fails(2, "missing cannot be read")
    file.chmod(0o644)
    quire(*read, "--password-file", str(file)).fails(2, "every account", f"chmod 600 {file}")


@pytest.mark.parametrize("verb", ["read", "show", "delete", "recover"])
def test_a_missing_ledger_is_an_error(quire: Quire, verb: str) -> None:
    done = quire("ledger", verb, "123456789")
    done.fails(1, "ledger 123456789")
    assert done.out == b""


def test_a_closed_output_pipe_ends_read_without_an_error(quire: Quire) -> None:
    """`quire ledger read ID | head -2`: nothing is said about it."""
    ledger_id = quire.write(b"".join(b"%d\n" % number for number in range(500_000)))
    with quire.start("ledger", "read", ledger_id) as reader:
        assert [reader.line(), reader.line()] == ["0", "1"]
        assert reader.process.stdout is not None
        reader.process.stdout.close()
        assert reader.process.wait(TIMEOUT_S) == 141
        assert reader.process.stderr is not None
        assert reader.process.stderr.read() == b""


def test_a_line_too_long_for_an_entry_closes_the_ledger(quire: Quire) -> None:
    done = quire("ledger", "write", stdin=b"one\ntwo\n" + b"x" * 6_000_000 + b"\nfour\n")
    ledger_id = done.out.decode().strip()
    done.fails(1, "line 3", f"ledger {ledger_id} closed: 2 entries")
    assert quire("ledger", "read", ledger_id).ok() == b"one\ntwo\n"


def test_too_few_bookies_for_the_ensemble_are_reported(quire: Quire) -> None:
    done = quire("ledger", "write", "--ensemble", "4", stdin=b"one\n")
    done.fails(1, "4", "3")
    assert done.out == b""


def test_show_names_segments_and_bookies(quire: Quire, cluster: LocalCluster) -> None:
    ledger_id = quire.write(b"one\ntwo\n", "--custom", "who=me")
    (segment,) = json.loads(quire("ledger", "show", ledger_id, "--json").ok())["segments"]
    assert sorted(segment["bookies"]) == sorted(bookie.id for bookie in cluster.bookies)
    assert (segment["first_entry_id"], segment["last_entry_id"]) == (0, 1)
    text = quire("ledger", "show", ledger_id).ok().decode()
    for part in (*segment["bookies"], "CLOSED", "who=me", "0..1", "CRC32C"):
        assert part in text


def test_ledgers_are_listed_and_deleted(quire: Quire, cluster: LocalCluster) -> None:
    ids = [quire.write(b"%d\n" % number) for number in range(3)]
    listed = quire("ledger", "list").ok().decode().splitlines()
    assert listed == sorted(listed, key=int)
    assert set(ids) <= set(listed)
    assert quire("ledger", "list", "--first", ids[1]).ok().decode().split() == [
        ledger_id for ledger_id in listed if int(ledger_id) >= int(ids[1])
    ]
    described = [json.loads(line) for line in quire("ledger", "list", "--json").ok().splitlines()]
    assert [str(one["ledger_id"]) for one in described] == listed
    with connect(cluster.uri) as client, client.create_ledger() as ledger:
        unfinished = str(ledger.ledger_id)
        unclosed = quire("ledger", "list", "--open").ok().decode().split()
        assert unfinished in unclosed
        assert not set(ids) & set(unclosed)
        rows = quire("ledger", "list", "--open", "--json").ok().splitlines()
        assert [str(json.loads(row)["ledger_id"]) for row in rows] == unclosed
    assert unfinished not in quire("ledger", "list", "--open").ok().decode().split()
    planned = quire("ledger", "delete", ids[1], "--dry-run")
    planned.ok()
    assert "would be deleted" in planned.err
    assert ids[1] in quire("ledger", "list").ok().decode().splitlines()
    deleted = quire("ledger", "delete", ids[1])
    assert (deleted.ok(), deleted.err) == (b"", f"ledger {ids[1]} deleted\n")
    assert ids[1] not in quire("ledger", "list").ok().decode().splitlines()
    quire("ledger", "read", ids[1]).fails(1, f"ledger {ids[1]}")
    quire("ledger", "delete", ids[0], ids[1], ids[2]).fails(1, f"ledger {ids[1]}")
    assert {ids[0], ids[2]} <= set(quire("ledger", "list").ok().decode().splitlines())
    both = quire("ledger", "delete", ids[0], ids[2], ids[0], "--yes")
    assert (both.ok(), both.err) == (b"", f"ledger {ids[0]} deleted\nledger {ids[2]} deleted\n")
    assert not set(ids) & set(quire("ledger", "list").ok().decode().splitlines())


def test_the_bookies_of_the_cluster_are_listed(quire: Quire, cluster: LocalCluster) -> None:
    lines = quire("cluster", "bookies").ok().decode().splitlines()
    assert lines == sorted(f"{b.id} writable 127.0.0.1:{b.port}" for b in cluster.bookies)
    found = [json.loads(line) for line in quire("cluster", "bookies", "--json").ok().splitlines()]
    assert {(one["id"], one["state"], one["port"]) for one in found} == {
        (bookie.id, "writable", bookie.port) for bookie in cluster.bookies
    }


def test_the_metadata_option_overrides_the_environment(cluster: LocalCluster) -> None:
    elsewhere = Quire("sqlite:////nowhere/at/all.db")
    elsewhere("ledger", "list").fails(1, "/nowhere/at")
    assert elsewhere("ledger", "list", "--metadata", cluster.uri).status == 0


def test_the_quire_script_is_installed(cluster: LocalCluster) -> None:
    """`quire` and `python -m quire` are the same program."""
    done = subprocess.run(
        [
            str(Path(COMMAND[0]).with_name("quire")),
            "cluster",
            "bookies",
            "--metadata",
            cluster.uri,
        ],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stdout == Quire(cluster.uri)("cluster", "bookies").ok()


# -- bench ------------------------------------------------------------------------------------

SMALL = ("--size", "100", "--warm-up", "50", "--outstanding", "40")


@pytest.mark.parametrize(
    ("verb", "arguments"),
    long_after(6, [
        ("add", ("--entries", "1000", *SMALL)),
        ("ledgers", ("--entries", "1000", *SMALL, "--ledgers", "70")),
        ("latency", ("--entries", "50", "--warm-up", "0")),
        ("read", ("--entries", "3000", "--size", "100")),
        ("recover", ("--entries", "200", "--size", "100", "--ledgers", "3")),
        ("tail", ("--entries", "300", "--size", "100", "--warm-up", "50", "--readers", "3")),
        ("add", ("--entries", "1000", *SMALL, "--mode", "one")),
        ("add", ("--entries", "1000", *SMALL, "--ledgers", "7")),
        ("add", ("--entries", "1000", *SMALL, "--ledgers", "7", "--mode", "one")),
        ("add", ("--entries", "300", *SMALL, "--ensemble", "3", "--write-quorum", "2")),
        ("latency", ("--entries", "500", *SMALL)),
        ("latency", ("--entries", "200", "--rate", "2000")),
        ("tail", ("--entries", "100", "--rate", "300", "--readers", "7", "--clients", "2",
                  "--explicit-lac", "1")),
    ]),
)  # fmt: skip
def test_bench_prints_one_result_for_each_round(
    quire: Quire, verb: str, arguments: tuple[str, ...]
) -> None:
    before = quire("ledger", "list").ok()
    done = quire("bench", verb, *arguments, "--rounds", "2")
    lines = done.ok().decode().splitlines()
    assert len(lines) == 2
    for line in lines:
        assert len(re.findall(r"\b\d+/s", line)) == line.count("/s") == (verb != "recover"), line
    assert done.err == ""
    rounds = quire("bench", verb, *arguments, "--rounds", "2", "--json").ok().splitlines()
    for number, text in enumerate(rounds, start=1):
        found = json.loads(text)
        assert (found["verb"], found["round"]) == (verb, number)
        assert found["entries"] == int(arguments[1])
        assert (found["rate_per_s"] is None) == (verb == "recover")
        assert (found["p50_ms"] is None) == (verb == "read")
        assert found["cpu_s"] > 0
        if found["p50_ms"] is not None:
            assert 0 < found["p50_ms"] <= found["p99_ms"]
        assert ("acked_p50_ms" in found) == (verb == "tail")
        if verb == "tail":
            assert 0 <= found["acked_p50_ms"] < found["p50_ms"]
            assert found["acked_p50_ms"] <= found["acked_p99_ms"] <= found["p99_ms"]
            assert found["delivery_cpu_us"] > 0
    assert quire("ledger", "list").ok() == before, "the ledgers of a benchmark are deleted"


@pytest.mark.parametrize(
    ("verb", "arguments"),
    long_after(2, [
        *((verb, ()) for verb in ("add", "ledgers", "latency", "read", "recover", "rereplicate")),
        ("tail", ()), ("stream", ("write",)), ("stream", ("read",)), ("stream", ("tail",)),
    ]),
)  # fmt: skip
def test_a_benchmark_checks_the_size_of_the_cluster_first(
    quire: Quire, verb: str, arguments: tuple[str, ...]
) -> None:
    """`bench stream write` once tried for a minute."""
    before = quire("ledger", "list").ok()
    ensemble = () if verb == "rereplicate" else ("--ensemble", "5")
    quire("bench", verb, *arguments, *ensemble).fails(
        1, "cannot run on this cluster", "3 are writable", "Start more bookies, or use a smaller"
    )
    assert quire("ledger", "list").ok() == before


def test_bench_stream_tail_ends_soon_by_default(quire: Quire) -> None:
    """It once appended a million records one by one, as many as `write` appends together."""
    found = json.loads(quire("bench", "stream", "tail", "--rounds", "1", "--json").ok())
    assert (found["verb"], found["entries"]) == ("stream tail", 500)
    assert found["p50_ms"] > 0


def test_bench_keeps_its_ledgers_on_request(quire: Quire) -> None:
    before = set(quire("ledger", "list").ok().decode().split())
    arguments = ("--entries", "100", "--size", "10", "--rounds", "1", "--warm-up", "0", "--keep")
    quire("bench", "add", *arguments).ok()
    (made,) = set(quire("ledger", "list").ok().decode().split()) - before
    shown = json.loads(quire("ledger", "show", made, "--json").ok())
    assert (shown["state"], shown["last_entry_id"], shown["length"]) == ("CLOSED", 99, 1_000)
    out = quire("bench", "read", "--ledger", made, "--rounds", "1", "--json").ok()
    assert json.loads(out)["entries"] == 100
    assert made in quire("ledger", "list").ok().decode().split()
