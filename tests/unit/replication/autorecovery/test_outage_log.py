"""Failures that are repeated while the metadata store is away are logged once."""

from __future__ import annotations

from quire.errors import MetadataError, MetadataUnavailableError
from quire.replication.autorecovery.outage_log import OutageLog


def test_only_the_first_failure_of_a_store_that_does_not_answer_is_logged() -> None:
    logged: list[tuple[str, str]] = []
    log = OutageLog(lambda event, **fields: logged.append((event, fields["error"])))
    away, other = MetadataUnavailableError("away"), MetadataError("damaged")
    for _ in range(3):
        log.failed("worker_failed", away)
    assert [event for event, _ in logged] == ["worker_failed"]
    for _ in range(2):
        log.failed("worker_failed", other)
    assert len(logged) == 3, "failures of another kind are all logged"
    log.failed("worker_failed", away)
    assert len(logged) == 4
    log.worked()
    log.failed("worker_failed", away)
    assert len(logged) == 5
