"""The program in the guide to the client's logs and traces."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quire.testing.cluster import LocalCluster

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "programs" / "client-observability.md"
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE_S = 120

RECOVERY = """
writer = client.create_ledger()
writer.append(b"x")
client.open_ledger(writer.ledger_id, recover=True)
"""


def test_the_programs_of_the_guide_run(tmp_path: Path) -> None:
    blocks = PYTHON.findall(GUIDE.read_text(encoding="utf-8"))
    assert len(blocks) == 4
    with LocalCluster(bookies=3, directory=tmp_path / "cluster") as cluster:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", "\n".join([*blocks, RECOVERY])],
            env={**os.environ, "QUIRE_METADATA": cluster.uri},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "quire_client_adds_total 0" in done.stdout
    assert re.search(r'"name": "quire_client_adds",.*?"value": 1\b', done.stdout, re.DOTALL)
    traces = dict(re.findall(r'"name": "([\w.]+)",\s+"context": \{\s+"trace_id": "(\w+)"',
                             done.stdout))  # fmt: skip
    assert traces.keys() >= {"order", "quire.create_ledger", "quire.add", "quire.close_ledger"}
    # The blocking client runs its calls in another thread, but in the trace of the caller.
    assert set(traces.values()) == {traces["order"]}
    assert '"event": "ledger_recovered"' in done.stderr
