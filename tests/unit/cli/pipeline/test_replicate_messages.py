"""What `quire pipeline replicate` prints about streams that it could not copy."""

from __future__ import annotations

import json

import pytest

from quire.cli.common import logs
from quire.cli.pipeline.replicate import _failed, _lines
from quire.spark.jobs.replicate import ReplicateResult, StreamReplica

RESULT = ReplicateResult(
    "/a", "/b", tuple(StreamReplica(name, error="no such topic") for name in "xy"), 1.0
)


@pytest.mark.parametrize("form", ["json", "console"])
def test_replication_messages_follow_the_log_format(
    form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "choice", lambda: logs.LogChoice(format=form))
    assert _failed(RESULT) == 1
    _lines()(RESULT)
    failed, lag = capsys.readouterr().err.splitlines()
    if form == "json":
        failed, lag = (json.loads(line) for line in (failed, lag))
        assert (failed["level"], failed["message"]) == ("error", "no such topic")
        assert lag["level"] == "info"
    else:
        assert failed == "error: no such topic"
        assert lag.startswith("0 streams: ")
