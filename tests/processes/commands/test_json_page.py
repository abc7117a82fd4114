"""docs/reference/json.md lists the keys that commands print with --json.

With QUIRE_WRITE_DOCS=1 the table is written instead of compared.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from quire import DatasetLedger, blocking
from quire.cli.common.output import ALIKE
from quire.testing.cluster import LocalCluster
from tests.support.processes.cli import Quire

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "json.md"
BEGIN, END = "<!-- keys -->\n", "<!-- end of keys -->\n"
COMMANDS = (
    "ledger list", "ledger show 0", "ledger read 0", "ledger recover 0",
    "stream list", "stream show clicks", "stream show TOPIC", "stream read clicks",
    "stream tail clicks",
    "stream retain clicks --dry-run", "stream truncate clicks --before seq:50 --dry-run",
    "namespace list", "namespace show /streams", "object list", "object show a/b",
    "dataset list", "dataset show numbers", "dataset sweep --older-than 0 --dry-run",
    "cluster bookies", "cluster locations list", "cluster gc status",
    "cluster rebalance --dry-run --no-check", "bookie decommission BOOKIE --dry-run --no-check",
    "autorecovery status", "autorecovery delay", "explain cluster", "explain ledger 0",
    "explain stream clicks",
    "config show", "bench add --rounds 1 --entries 100",
    "bookie cookie show BOOKIE", "cluster pause", "cluster init --metadata sqlite:///new.db",
    "config check quire.toml", "bookie conf bk_server.conf",
    "bookie init --dir disk --port 3999 --advertise 127.0.0.1",
    "bookie recover 127.0.0.1:3999 --dry-run", "bookie scrub disk",
    "bookie format --dir disk --yes",
)  # fmt: skip
WRITING = {
    "ledger write": b"one\ntwo\n",
    "stream write clicks --create --roll-every 40": b"".join(b"%d\n" % n for n in range(100)),
    "stream write clicks --key-separator :": b"visitor-7:100\n",
    "object put - a/b": b"an object",
}
GROUPS = ("bookie cookie", "cluster gc", "cluster locations")
"""The groups of commands within groups."""


def test_the_page_lists_the_keys_that_are_printed(tmp_path: Path) -> None:
    (tmp_path / "quire.toml").write_text("[bookie]\n")
    (tmp_path / "bk_server.conf").write_text("bookiePort=3181\nadvertisedAddress=127.0.0.1\n")
    with LocalCluster(4) as cluster:
        quire = Quire(cluster.uri, tmp_path)
        found: dict[str, list[str]] = {}
        for words, stdin in WRITING.items():
            found[command_of(words)] = keys(quire(*words.split(), "--json", stdin=stdin).ok())
        write_dataset(cluster.uri)
        bookie = quire("cluster", "bookies").ok().decode().split()[0]
        quire("cluster", "pause", "rebalance").ok()  # `pause` lists it
        quire("stream", "create", "visits", "--partitions", "2").ok()
        for words in COMMANDS:
            typed = words.replace("BOOKIE", bookie).replace("TOPIC", "visits").split()
            found[command_of(words)] = keys(quire(*typed, "--json").ok())
    table = "| command | keys of an object |\n|---|---|\n" + "".join(
        f"| `quire {name}` | {', '.join(f'`{key}`' for key in listed)} |\n"
        for name, listed in sorted(found.items())
    )
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    shown, _, after = rest.partition(END)
    if os.environ.get("QUIRE_WRITE_DOCS"):
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
    else:
        assert shown.strip() == table.strip(), "run this test with QUIRE_WRITE_DOCS=1"


def write_dataset(uri: str) -> None:
    """Publish one ledger as a dataset, and leave another one that is not published."""
    with blocking.connect(uri) as client:
        for rows in ([b"1", b"2"], [b"3"]):
            with client.create_ledger(custom={"quire.dataset": b"numbers"}) as writer:
                writer.append_many(rows)
            if len(rows) == 2:
                part = DatasetLedger(writer.ledger_id, first=0, last=1, rows=2, bytes=2)
                client.datasets.publish("numbers", [part], txn="load-1")


def command_of(words: str) -> str:
    """Return the name of a command: its words up to the first argument other than TOPIC."""
    named = words.split()
    return " ".join(named[: 3 if " ".join(named[:2]) in GROUPS or "TOPIC" in named else 2])


def keys(out: bytes) -> list[str]:
    """Return the keys of the printed objects. Each former key has the common one beside it."""
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines
    listed: dict[str, None] = {}
    for line in lines:
        check(line)
        listed.update(dict.fromkeys(line))
    return list(listed)


def check(value: object) -> None:
    if isinstance(value, dict):
        for former, key in ALIKE.items():
            if isinstance(value.get(former), int):
                assert key in value, value
        for one in value.values():
            check(one)
    elif isinstance(value, list):
        for one in value:
            check(one)
