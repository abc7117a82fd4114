"""The guide to streams lists all settings with their defaults."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from quire.codec.distributedlog.record import MAX_PAYLOAD_BYTES
from quire.streams.namespace.settings import DEFAULTS
from quire.streams.read.positions import EARLIEST, LATEST
from quire.streams.write.producers import PRODUCERS_MAX
from quire.streams.write.writer_task import GIVE_UP_S, NEXT_LEDGER_PAUSE_S
from tests.support.docs.pages import section

GUIDE = (Path(__file__).parents[4] / "docs" / "guides" / "programs" / "streams.md").read_text(
    encoding="utf-8"
)
ROW = re.compile(r"^\| `([a-z_]+)` \| `(\S+)` \| (\w+) \| .+ \|$", re.MULTILINE)


def test_the_documented_settings_match_the_code() -> None:
    rows = ROW.findall(section(GUIDE, "## Settings"))
    listed = [(name, ast.literal_eval(value)) for name, value, _ in rows]
    assert listed == list(DEFAULTS.as_dict().items())
    assert [kind for *_, kind in rows] == [type(value).__name__ for _, value in listed]


def test_the_limits_in_the_guide_match_the_code() -> None:
    assert f"up to {MAX_PAYLOAD_BYTES:,} bytes" in GUIDE
    assert f"remembers the {PRODUCERS_MAX:,} producers" in GUIDE
    assert f"for {GIVE_UP_S:g} s" in GUIDE
    assert f"tries every {NEXT_LEDGER_PAUSE_S:g} s to begin" in GUIDE
    for place in (EARLIEST, LATEST):
        assert f"| `{place.upper()}` | `{place}` |" in section(GUIDE, "## Read a stream")
