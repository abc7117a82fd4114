"""Which errors of Spark's say that a job has published nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from quire.errors import JobError, JobRefusedError, QuireError, UsageError
from quire.spark import failures
from quire.spark.failures import (
    before_publishing,
    one_error,
    publishing_one_stream,
    py4j_messages_in,
    text_kept,
)

FENCED = (
    "An exception was thrown from the Python worker.\n"
    "Traceback (most recent call last):\n"
    '  File "/opt/quire/spark/streams/writer.py", line 7, in commit\n'
    "quire.errors.StreamFencedError: stream a was taken over by another writer. Run it again\n"
)
UNAVAILABLE = "quire.errors.MetadataUnavailableError: the store does not answer"


class SparkError(Exception):
    """An error as PySpark raises it."""


SparkError.__module__ = "pyspark.errors"


def told(text: str, step: Callable[[], AbstractContextManager[None]] | None = None) -> QuireError:
    with pytest.raises(SparkError) as caught, step() if step else nullcontext():
        raise SparkError(text)
    error = one_error(caught.value, "compact")
    assert isinstance(error, QuireError)
    return error


def test_an_error_of_spark_has_an_unknown_outcome_by_default() -> None:
    for text in (FENCED, UNAVAILABLE, "Job aborted", "quire.errors.StreamGapError: gone"):
        error = told(text)
        assert type(error) is JobError
        assert not error.outcome_known


@pytest.mark.parametrize("kind", [UsageError, JobRefusedError])
def test_a_refusal_was_raised_before_anything_was_done(kind: type[QuireError]) -> None:
    error = told(f"quire.errors.{kind.__name__}: no. Do this")
    assert (type(error), error.outcome_known, str(error)) == (kind, True, "no. Do this")


@pytest.mark.parametrize("text", [FENCED, UNAVAILABLE, "Job aborted due to stage failure"])
def test_an_error_before_the_publication_has_a_known_outcome(text: str) -> None:
    error = told(text, before_publishing)
    assert type(error) is JobError
    assert error.outcome_known


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (FENCED, True),
        ("quire.errors.StreamGapError: records of the source are gone", True),
        (UNAVAILABLE, False),
        # An error of the publication, and a later one: the last step may have succeeded.
        (f"{UNAVAILABLE}\n\nDuring handling of the above exception:\n\n{FENCED}", False),
        ("quire.errors.ClientClosedError: the client is closed", False),
        # Spark lost the process that was publishing.
        ("Job aborted due to stage failure: Python worker exited unexpectedly", False),
    ],
)
def test_the_outcome_of_a_failed_write_to_one_stream_follows_from_the_error(
    text: str, known: bool
) -> None:
    error = told(text, publishing_one_stream)
    assert error.outcome_known is known


def test_an_error_that_is_not_of_spark_is_not_changed() -> None:
    mine = KeyError("x")
    with pytest.raises(KeyError), before_publishing():
        raise mine
    assert one_error(mine, "compact") is mine


@pytest.mark.parametrize("cause", ["Path does not exist: ", "quire.errors.HistoryError: no file "])
def test_credentials_in_a_uri_are_not_shown(cause: str) -> None:
    error = told(f"{cause}s3a://user:secret@bucket/x?sig=secret")
    assert "s3a://bucket/x" in str(error)
    assert "secret" not in str(error)


class Java:
    """Java, which an error needs for its text."""

    ended = False


class CapturedError(SparkError):
    """An error of Java's, as PySpark raises it. `_desc` is the message without any stack."""

    _desc = ""

    def __str__(self) -> str:
        assert not Java.ended
        return f"{self._desc}{FENCED}"


CapturedError.__module__ = "pyspark.errors.exceptions.captured"


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        (True, "stream a was taken over by another writer. Run it again"),
        (False, "compact failed: record 1:0:1 has no key"),
    ],
)
def test_the_text_of_an_error_after_the_end_of_java(
    monkeypatch: pytest.MonkeyPatch, kept: bool, text: str
) -> None:
    """It is complete if it was taken in the session. Java may also end by itself before that."""
    error = CapturedError()
    error._desc = "record 1:0:1 has no key\n"
    with pytest.raises(CapturedError), text_kept() if kept else nullcontext():
        raise error
    monkeypatch.setattr(Java, "ended", True)
    assert str(one_error(error, "compact")) == text
    assert (getattr(error, "__notes__", []) != []) is kept


@pytest.mark.parametrize("step", [text_kept, publishing_one_stream])
def test_a_step_does_not_replace_an_error_without_text(
    monkeypatch: pytest.MonkeyPatch, step: Callable[[], AbstractContextManager[None]]
) -> None:
    monkeypatch.setattr(Java, "ended", True)
    with pytest.raises(CapturedError), step():
        raise CapturedError


def test_a_file_that_cannot_be_read_is_named_with_the_reason() -> None:
    text = (
        "An error occurred while calling o1.save.\n"
        ": org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while "
        "reading file file:///in/2.csv.  SQLSTATE: KD001\n"
        "\tat org.apache.spark.Some.call(Some.scala:1)\n"
        "Caused by: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered\n"
        "Caused by: org.apache.spark.SparkIllegalArgumentException: CSV header does not conform.\n"
        "Expected: a but found: b\n"
        "\tat org.apache.spark.Other.call(Other.scala:1)\n"
    )
    told = str(failures._of_spark(Exception(), text, "ingest", lambda: None))
    assert "2.csv: CSV header does not conform. Expected: a but found: b" in told


def test_what_py4j_logs_about_a_lost_connection_goes_to_the_log_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ctrl-C showed `error: Exception while sending command.: Py4JNetworkError(...)`."""
    py4j = compile(
        "logging.exception('while sending')", "/site-packages/py4j/clientserver.py", "exec"
    )
    log = tmp_path / "spark.log"
    with py4j_messages_in(log):
        assert not log.exists()
        try:
            raise ConnectionError("Java has ended")
        except ConnectionError:
            exec(py4j, {"logging": logging})
        logging.getLogger("py4j.clientserver").error("while shutting down")
        logging.warning("another message")
    assert caplog.messages == ["another message"]
    kept = log.read_text(encoding="utf-8")
    assert "while sending\nTraceback" in kept
    assert kept.count("while shutting down") == 1
    exec(py4j, {"logging": logging})
    logging.getLogger("py4j.clientserver").error("while shutting down")
    assert len(caplog.messages) == 3
