"""Commands on a bookie's identity and disk, beside a running bookie and after a kill."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from quire.testing.cluster import free_ports
from tests.support.processes.cli import Quire

pytestmark = pytest.mark.slow

ONE = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
LIMITS = (
    "--set", "segment_bytes=1048576", "--set", "min_free_bytes=0", "--set", "gc_interval_s=0.2",
)  # fmt: skip


def test_a_bookie_directory_can_be_managed_by_commands(tmp_path: Path) -> None:
    """The bookie is created, started, moved to another port, inspected, killed, checked, erased
    and created again."""
    quire = Quire(f"sqlite:///{tmp_path / 'metadata.db'}").initialised()
    place = str(tmp_path / "data")
    first, second = map(str, free_ports(2))
    bookie_id = f"127.0.0.1:{first}"
    made = quire("bookie", "init", "--dir", place, "--port", first).ok()
    assert made == f"{bookie_id}\n".encode()
    quire("bookie", "init", "--dir", place, "--port", first).fails(1, bookie_id, "already")
    start = ("bookie", "--dir", place, "--port", second, *LIMITS)
    payload = b"".join(b"%0999d\n" % number for number in range(2_000))
    with quire.start(*start) as bookie:
        assert bookie.line() == bookie_id, bookie.why_ended()
        kept = quire.write(b"kept\n", *ONE)
        dropped = quire.write(payload, *ONE)
        with quire.start("ledger", "write", *ONE) as writer:
            writer.line()
            writer.type(payload)  # segments are begun, filled and sealed meanwhile
            quire("ledger", "delete", dropped).ok()
            total = json.loads(quire("bookie", "disk", "check", place, "--json").ok()
                               .splitlines()[-1])  # fmt: skip
            assert total["ok"], total
            assert kept.encode() in quire("bookie", "disk", "ledger", place, kept).ok()
            files = quire("bookie", "disk", "files", place, "--json").ok().splitlines()
            numbers = [one["segment"] for one in map(json.loads, files) if "segment" in one]
            shown = quire("bookie", "disk", "segment", place, str(numbers[0]))
            assert "Traceback" not in shown.err
            assert shown.status == 0 or "does not exist" in shown.err, shown
            writer.end().ok()
        quire("bookie", "format", "--dir", place, "--yes").fails(1, "in use by a running bookie")
        quire("bookie", "disk", "rebuild-index", place).fails(1, "in use by a running bookie")
        quire("bookie", "cookie", "delete", bookie_id, "--force").fails(2, "registered at")
        bookie.process.kill()
        bookie.process.wait()
    end = json.loads(quire("bookie", "disk", "last-mark", place, "--json").ok())
    assert not end["clean"], end
    quire("bookie", "disk", "check", place).ok()
    with quire.start(*start) as bookie:
        assert bookie.line() == bookie_id, bookie.why_ended()
        assert quire("ledger", "read", kept).ok() == b"kept\n"
        bookie.end(signal.SIGTERM).ok()
    format_it = ("bookie", "format", "--dir", place, "--delete-cookie", "--yes")
    quire(*format_it).fails(2, f"ledgers have replicas on bookie {bookie_id}")
    quire(*format_it, "--force").ok()
    quire(*format_it).fails(1, f"{place} has no cookie that can be read")
    with quire.start(*start) as bookie:
        assert bookie.line() == f"127.0.0.1:{second}", bookie.why_ended()
        bookie.end(signal.SIGTERM).ok()
