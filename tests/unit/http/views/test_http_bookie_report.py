"""The report of a bookie about itself, and what other servers take from it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from quire.bookie.directories.opening import storage_config
from quire.codec.metadata.registration import Endpoint
from quire.http.views.bookie_page import actions, with_fullness
from quire.http.views.bookie_report import PATH, bookie_report, read_report
from quire.http.views.problems.disks import own_bytes
from quire.http.views.untrusted import ITEMS_MAX, TEXT_MAX, taken
from quire.http.watch.bookie_reports import REPORT_INTERVAL_S, REPORTS_MAX, BookieReports
from quire.http.watch.rates import ENDPOINT
from quire.metadata.bookies.orders import Order, What, give_order
from quire.metadata.interface import BookieAddress
from quire.storage.disk import RealDisk
from quire.storage.inspect.space_report import look
from tests.support.bookies.bookie import running_bookie
from tests.support.waiting import until

ADDRESS = BookieAddress("b", "10.0.0.1", 3181, others=(Endpoint(ENDPOINT, "10.0.0.1", 80, "http"),))
LONG_S = 30.0


async def test_a_bookie_reports_its_state_and_directories(tmp_path: Path) -> None:
    second = tmp_path / "two"
    async with running_bookie(tmp_path / "one", more=[RealDisk(str(second))]) as bookie:
        found = bookie_report(bookie, "9.9", 7)
        assert (found["id"], found["version"], found["started_ms"]) == (bookie.bookie_id, "9.9", 7)
        assert (found["state"], found["unwritable"]) == ("writable", [])
        assert found["started_ms"] < found["now_ms"] <= bookie.now_ms()
        paths = [one["path"] for one in found["directories"]]
        assert paths == [str(tmp_path / "one"), str(second)]
        for one in found["directories"]:
            assert 0 < one["free_bytes"] <= one["total_bytes"]
            (current,) = one["segments"]
            assert (current["state"], current["segments"]) == ("current", 1)
        # Another server takes all of it.
        assert read_report(json.dumps(found)) == found


async def test_a_bookie_counts_its_files_as_the_command_on_its_machine_does(
    tmp_path: Path,
) -> None:
    """Prepared segments and the reserve for compaction once counted as files of somebody else."""
    async with running_bookie(tmp_path) as bookie:

        def equal() -> bool:
            (one,) = bookie_report(bookie, "", 0)["directories"]
            disk = RealDisk(str(tmp_path), read_only=True)
            space = look(disk, storage_config(bookie.config, disk))
            files = sum(segment.file_bytes for segment in space.segments) + space.reserve_bytes
            reported = own_bytes({"report": {"directories": [one]}}, one["path"])
            return one["prepared_bytes"] > 0 and reported == files

        await until(equal)


async def test_a_bookie_reports_why_it_is_read_only(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as bookie:
        bookie.hold_readonly(True)
        held = bookie_report(bookie, "", 0)
        assert (held["state"], held["held_readonly"]) == ("read-only", True)
        (one,) = held["unwritable"]
        assert (one["why"], one["details"]) == ("held", "an operator holds it until its next start")
        bookie.hold_readonly(False)
        order = Order(What.DRAIN, 0, "ops-1")
        await give_order(bookie.metadata, bookie.bookie_id, order, None)
        await until(lambda: not bookie.writable, "the order arrives")
        (one,) = bookie_report(bookie, "", 0)["unwritable"]
        assert (one["why"], one["details"]) == (
            "ordered", "it is being decommissioned, as ops-1 ordered",
        )  # fmt: skip


async def test_a_full_directory_is_named(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as bookie:
        # As if the last segment had found no space.
        bookie.store._preallocated.space = False  # type: ignore[union-attr]
        bookie.store._preallocated.error = "7 bytes are free, less than 1000"  # type: ignore[union-attr]
        (one,) = bookie_report(bookie, "", 0)["unwritable"]
        assert one == {
            "why": "full",
            "details": "7 bytes are free, less than 1000",
            "directory": str(tmp_path),
        }


# -- what is taken from another process -------------------------------------------------------


def test_unknown_report_fields_are_dropped_and_missing_ones_are_none() -> None:
    shape = {"a": int, "b": str, "c": [int], "d": {"e": [str]}}
    assert taken('{"a": 1, "evil": 2, "d": {}}', shape) == {
        "a": 1, "b": None, "c": [], "d": {"e": []},
    }  # fmt: skip


def test_a_report_of_another_version_is_shown() -> None:
    """The page of such a bookie was an unexpected error."""
    report = read_report('{"directories": [{"path": "/d"}]}')
    shown = with_fullness(report)
    assert shown is not None
    assert shown["directories"][0]["fullness"] == ""
    bookie = {"id": "a", "state": "writable"}
    for one in (report, read_report("{}")):
        assert actions(bookie, one, None, "")["read_only"]["possible"]
        assert with_fullness(one)


def test_long_answers_are_cut() -> None:
    found = taken(json.dumps(["x" * 2 * TEXT_MAX] * 2 * ITEMS_MAX), [str])
    assert (len(found), len(found[0])) == (ITEMS_MAX, TEXT_MAX)


@pytest.mark.parametrize(
    "text",
    [
        "", "nonsense", "[" * 100_000, "7", '{"directories": 7}', '{"directories": [7]}',
        '{"started_ms": true}', '{"started_ms": "7"}', '{"started_ms": NaN}', '{"id": 7}',
        '{"started_ms": 9223372036854775808}', '{"min_free_bytes": -1' + "0" * 400 + "}",
        '{"store": {"ledgers": 1.5}}', '{"garbage_collection": {"enabled": 1}}',
    ],
)  # fmt: skip
def test_an_answer_with_wrong_types_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_report(text)


# -- asking -----------------------------------------------------------------------------------


class Peer:
    def __init__(self, answer: str | Exception = "{}") -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def fetch(self, url: str) -> str:
        self.asked.append(url)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def refused(status: int) -> Exception:
    error = OSError("refused")
    error.status = status  # type: ignore[attr-defined]
    return error


async def test_a_report_is_requested_once_per_interval() -> None:
    now_s, peer = 0.0, Peer('{"id": "b"}')
    reports = BookieReports(lambda: now_s, peer.fetch, LONG_S)
    for _ in range(3):
        seen = await reports.of("b", ADDRESS)
        assert seen.report is not None
        assert (seen.report["id"], seen.missing) == ("b", "")
    assert peer.asked == [f"http://10.0.0.1:80{PATH}"]
    now_s += REPORT_INTERVAL_S
    await reports.of("b", ADDRESS)
    assert len(peer.asked) == 2


@pytest.mark.parametrize(
    ("answer", "missing", "remedy"),
    [
        (refused(401), "refuses this server (status 401)", "--http-bookies-token-file"),
        (refused(404), "does not have this route", "Apache"),
        (OSError("no route to host"), "no route to host", "Check that the bookie runs"),
        ("nonsense", "gave no usable answer", "Check that the bookie runs"),
    ],
)
async def test_a_missing_report_has_a_reason_and_a_remedy(
    answer: Any, missing: str, remedy: str
) -> None:
    seen = await BookieReports(lambda: 0.0, Peer(answer).fetch, LONG_S).of("b", ADDRESS)
    assert seen.report is None
    assert missing in seen.missing
    assert remedy in seen.remedy


async def test_bookies_without_a_usable_http_address_have_no_report() -> None:
    reports = BookieReports(lambda: 0.0, Peer().fetch, LONG_S)
    silent = await reports.of("b", BookieAddress("b", "10.0.0.1", 3181))
    assert "--http HOST:PORT" in silent.remedy
    assert "not registered" in (await reports.of("b", None)).missing


async def test_a_page_does_not_wait_for_a_bookie_that_hangs() -> None:
    async def hang(url: str) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    reports = BookieReports(lambda: 0.0, hang, 0.001)
    assert "not asked yet" in (await reports.of("b", ADDRESS)).missing
    await reports.close()


async def test_the_number_of_kept_reports_is_limited() -> None:
    peer = Peer('{"id": "b"}')
    reports = BookieReports(lambda: 0.0, peer.fetch, LONG_S)
    for number in range(REPORTS_MAX + 1):
        await reports.of(f"b{number}", ADDRESS)
    assert len(reports._known) == REPORTS_MAX
    await reports.of("b0", ADDRESS)
    assert len(peer.asked) == REPORTS_MAX + 2
