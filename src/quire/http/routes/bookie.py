"""The routes of Apache's HTTP server about the bookie whose process serves them."""

from __future__ import annotations

import asyncio
from dataclasses import fields, is_dataclass
from typing import Any

from quire._runtime.tasks import TaskSet
from quire.bookie.server import Bookie
from quire.errors import BookieUnavailableError, QuireError, UsageError
from quire.http.routes.cluster import Connect
from quire.http.server.api import Call, Field, Reply, Route, Text
from quire.http.server.error_responses import NotOfferedError
from quire.http.views.bookie_report import PATH as REPORT_PATH
from quire.http.views.bookie_report import bookie_report
from quire.storage.directories import Store

PREFIX = "/api/v1/bookie"
SANITY_TIMEOUT_S = 5.0
KINDS = ("major", "minor")
"""The kinds of compaction."""
NOT_OFFERED = {
    ("PUT", "/api/v1/config/server_config"): (
        "settings do not change while a bookie runs",
        "Start it again with --set NAME=VALUE",
    ),
    ("PUT", f"{PREFIX}/expand_storage"): (
        "data directories are not added while a bookie runs",
        "Start it again with the additional directory",
    ),
    ("PUT", f"{PREFIX}/entry_location_compact"): (
        "Quire does not use RocksDB",
        "Nothing needs to be done: the index of a segment is complete when it is sealed",
    ),
}
"""Why each of Apache's routes that has no meaning for Quire has none, and what to do instead. The
keys are the method and the path."""


class BookieRoutes:
    """The routes about one bookie."""

    def __init__(
        self,
        bookie: Bookie,
        connect: Connect,
        tasks: TaskSet,
        *,
        version: str = "",
        started_ms: int = 0,
    ) -> None:
        """Create the routes.

        Args:
            bookie: The bookie of this process.
            connect: Returns the client.
            tasks: Runs the garbage collections that requests begin.
            version: The version of Quire that the process runs.
            started_ms: When the process started, in milliseconds since 1970.
        """
        self._bookie = bookie
        self._version = version
        self._started_ms = started_ms
        self._connect = connect
        self._tasks = tasks
        self._collecting = False
        self._forced: set[str] = set()
        """The kinds of compaction to begin when the present garbage collection has ended."""

    def routes(self) -> list[Route]:
        files = Field("file_type", "string", "only files of this kind",
                      choices=("journal", "entrylog", "index"))  # fmt: skip
        held = Field("readOnly", "boolean", "whether to refuse entries of writers", required=True)
        forced = (
            Field(
                "forceMajor", "boolean", "begin a major compaction without waiting for its interval"
            ),
            Field(
                "forceMinor", "boolean", "begin a minor compaction without waiting for its interval"
            ),
        )
        suspended = (
            Field("suspendMajor", "boolean", "suspend major compactions"),
            Field("suspendMinor", "boolean", "suspend minor compactions"),
            Field("by", "string", "the name that others see (default: the bookie's address)"),
        )
        resumed = (
            Field("resumeMajor", "boolean", "resume major compactions"),
            Field("resumeMinor", "boolean", "resume minor compactions"),
        )
        return [
            Route("GET", "/api/v1/config/server_config",
                  "Return the bookie's settings", self.config,
                  example={"gc_interval_s": 600.0}),
            Route("GET", f"{PREFIX}/info",
                  "Return the free and total space of the bookie's disks", self.info,
                  example={"freeSpace": 1, "totalSpace": 2}),
            Route("GET", f"{PREFIX}/state", "Return the state of the bookie", self.state,
                  example={"running": True, "readOnly": False, "shuttingDown": False,
                           "availableForHighPriorityWrites": True, "loadedPercent": 100}),
            Route("GET", f"{PREFIX}/state/readonly",
                  "Return whether the bookie is read-only", self.readonly,
                  example={"readOnly": False}),
            Route("PUT", f"{PREFIX}/state/readonly",
                  "Keep the bookie read-only until its next start, or stop keeping it so",
                  self.hold, body=(held,), example={"readOnly": True}),
            Route("GET", f"{PREFIX}/is_ready",
                  "Return 200 when the bookie serves clients, otherwise 503", self.is_ready,
                  example=Text("OK"), open=True),
            Route("GET", f"{PREFIX}/sanity",
                  "Check that the bookie answers on its own port and can sync its log",
                  self.sanity,
                  example={"passed": True, "readOnly": False}),
            Route("GET", f"{PREFIX}/last_log_mark",
                  "Return the current segment of the bookie's log and where that segment ends",
                  self.last_log_mark, example={"LastLogMark: Journal Id - 7(7.txn)": "Pos - 4096"}),
            Route("GET", f"{PREFIX}/list_disk_file",
                  "List the segments of the bookie's log", self.list_disk_file,
                  query=(files,), example={"entrylog files": "log/0000000000000001.seg\t"}),
            Route("GET", f"{PREFIX}/gc", "Return whether a requested collection or compaction "
                  "is running", self.collecting, example={"is_in_force_gc": "false"}),
            Route("PUT", f"{PREFIX}/gc",
                  "Collect deleted ledgers now, then compact if due or forced; 409 if nothing may "
                  "be deleted", self.collect, body=forced,
                  example="Triggered GC on BookieServer: 10.0.0.1:3181"),
            Route("GET", f"{PREFIX}/gc_details",
                  "Return what compaction has done since the bookie started", self.gc_details,
                  example=[{"majorCompactionCounter": 1, "minorCompactionCounter": 0}]),
            Route("GET", f"{PREFIX}/gc/suspend_compaction",
                  "Return whether compaction is suspended",
                  self.suspended, example={"isMajorGcSuspended": "true",
                                           "isMinorGcSuspended": "false"}),
            Route("PUT", f"{PREFIX}/gc/suspend_compaction",
                  "Suspend compaction until it is resumed or the bookie starts again", self.suspend,
                  body=suspended, example="Suspend majorGC on BookieServer: 10.0.0.1:3181"),
            Route("PUT", f"{PREFIX}/gc/resume_compaction", "Resume compaction",
                  self.resume, body=resumed,
                  example="Resume majorGC on BookieServer: 10.0.0.1:3181"),
            Route("GET", REPORT_PATH,
                  "Return why the bookie accepts no entries, and the state of its directories and "
                  "segments",
                  self.report, example={"id": "10.0.0.1:3181", "version": "1.0.0",
                                        "state": "writable", "unwritable": [], "directories": []}),
            *(
                Route("PUT", path, f"Not offered: {what}", _refuser(what, remedy))
                for (_, path), (what, remedy) in NOT_OFFERED.items()
            ),
        ]  # fmt: skip

    async def report(self, call: Call) -> dict[str, Any]:
        return bookie_report(self._bookie, self._version, self._started_ms)

    async def config(self, call: Call) -> dict[str, Any]:
        config = self._bookie.config
        return {one.name: _plain(getattr(config, one.name)) for one in fields(config)}

    async def info(self, call: Call) -> dict[str, int]:
        total, free = self._bookie.space()
        return {"freeSpace": free, "totalSpace": total}

    async def state(self, call: Call) -> dict[str, bool | int]:
        bookie = self._bookie
        well = bookie.serving and not bookie.failed.done()
        return {
            "running": well,
            "readOnly": not bookie.writable,
            "shuttingDown": bookie.stopping,
            "availableForHighPriorityWrites": well and bookie.store.failed is None,
            "loadedPercent": bookie.loading_percent,
        }

    async def readonly(self, call: Call) -> dict[str, bool]:
        return {"readOnly": not self._bookie.writable}

    async def hold(self, call: Call) -> dict[str, bool]:
        self._bookie.hold_readonly(call.body["readOnly"])
        return await self.readonly(call)

    async def is_ready(self, call: Call) -> Any:
        if self._bookie.serving and not self._bookie.failed.done():
            return Text("OK")
        return Reply(503, Text(f"Bookie is not fully started yet{self._how_far()}"))

    def _how_far(self) -> str:
        bookie = self._bookie
        return "" if bookie.recovered else f": {bookie.loading_percent} % of its log is loaded"

    @property
    def _store(self) -> Store:
        """The store of the bookie. Raises BookieUnavailableError while its log is being loaded."""
        if not self._bookie.recovered:
            raise BookieUnavailableError(
                f"the bookie is not fully started yet{self._how_far()}",
                remedy="Try again when /api/v1/bookie/is_ready answers OK",
            )
        return self._bookie.store

    async def sanity(self, call: Call) -> dict[str, bool]:
        bookie = self._bookie
        passed = bookie.serving and not bookie.failed.done()
        try:
            async with asyncio.timeout(SANITY_TIMEOUT_S):
                if passed:
                    await (await self._connect()).bookie_info(bookie.bookie_id)
                    passed = await _durable(bookie)
        except (QuireError, TimeoutError):
            passed = False
        return {"passed": passed, "readOnly": not bookie.writable}

    async def last_log_mark(self, call: Call) -> dict[str, str]:
        return {
            f"LastLogMark: Journal Id - {one.number}({one.number:x}.txn)": f"Pos - {one.end_bytes}"
            for one in self._store.usage()
            if one.state == "current"
        }

    async def list_disk_file(self, call: Call) -> dict[str, str]:
        from quire.storage.segment.segment import segment_name

        names = "".join(f"{segment_name(one.number)}\t" for one in self._store.usage())
        found = {"journal files": "", "entrylog files": names, "index files": ""}
        wanted = call.query.get("file_type")
        return {key: text for key, text in found.items() if wanted is None or wanted in key}

    async def collecting(self, call: Call) -> dict[str, str]:
        return {"is_in_force_gc": str(self._busy(self._store)).lower()}

    def _busy(self, store: Store) -> bool:
        return self._collecting or store.compaction_requested

    async def collect(self, call: Call) -> str:
        store = self._store
        if not self._bookie.serving:
            # The log takes no drops before the store has started, or once it is being closed.
            raise BookieUnavailableError(
                "no garbage collection was triggered, because the bookie does not serve clients",
                remedy="Try again when /api/v1/bookie/is_ready answers OK",
            )
        forced = {kind for kind in KINDS if call.body.get(f"force{kind.capitalize()}", False)}
        for kind in sorted(forced):
            self._check_may_compact(store, kind)
        self._forced |= forced
        if not self._collecting:
            self._collecting = True
            self._tasks.start(self._collect(store))
        if self._bookie.collection is not None:
            # Fail if nothing may be deleted. The compaction that was started goes on all the same.
            await self._bookie.collection.check()
        return f"Triggered GC on BookieServer: {self._bookie.bookie_id}"

    async def _collect(self, store: Store) -> None:
        try:
            await self._bookie.collect_garbage()
            store.check_space()
            store.request_compaction(minor="minor" in self._forced, major="major" in self._forced)
        finally:
            self._forced.clear()
            self._collecting = False

    def _check_may_compact(self, store: Store, kind: str) -> None:
        """Raise UsageError if compaction of this kind is suspended or switched off."""
        held = store.compaction_suspended
        if held is not None and getattr(held, kind):
            raise UsageError(
                f"nothing was done: {held.describe()}",
                remedy=f"Resume it with PUT {PREFIX}/gc/resume_compaction and the body "
                f'{{"resume{kind.capitalize()}": true}}, and repeat the request',
            )
        ratio = f"compact_{kind}_ratio"
        if getattr(self._bookie.config, ratio) <= 0:
            raise UsageError(
                f"nothing was done: {kind} compaction is switched off, because {ratio} is 0",
                remedy=f"Start the bookie again with a ratio above 0, such as --set {ratio}=0.5",
            )

    async def gc_details(self, call: Call) -> list[dict[str, Any]]:
        store = self._store
        stats = store.stats()
        return [
            {
                "forceCompacting": self._busy(store),
                "majorCompactionCounter": stats.compactions_major,
                "minorCompactionCounter": stats.compactions - stats.compactions_major,
                "freedBytes": stats.compaction_freed_bytes,
                "lastError": stats.last_error,
            }
        ]

    async def suspended(self, call: Call) -> dict[str, Any]:
        held = self._store.compaction_suspended
        found: dict[str, Any] = {
            "isMajorGcSuspended": str(held is not None and held.major).lower(),
            "isMinorGcSuspended": str(held is not None and held.minor).lower(),
        }
        return found | ({"by": held.by, "since_ms": held.since_ms} if held is not None else {})

    async def suspend(self, call: Call) -> str:
        major, minor = _kinds(call, "suspend")
        by = call.body.get("by") or f"http.{self._bookie.bookie_id}"
        self._store.suspend_compaction(minor=minor, major=major, by=by)
        return self._told("Suspend", major, minor)

    async def resume(self, call: Call) -> str:
        major, minor = _kinds(call, "resume")
        self._store.resume_compaction(minor=minor, major=major)
        return self._told("Resume", major, minor)

    def _told(self, what: str, major: bool, minor: bool) -> str:
        kinds = [kind for kind, wanted in (("major", major), ("minor", minor)) if wanted]
        return ", ".join(
            f"{what} {one}GC on BookieServer: {self._bookie.bookie_id}" for one in kinds
        )


def _kinds(call: Call, verb: str) -> tuple[bool, bool]:
    """Return whether the request names major compaction, and whether it names minor compaction.

    `verb` is `suspend` or `resume`. Raises UsageError if the request names neither.
    """
    major, minor = (call.body.get(f"{verb}{kind}", False) for kind in ("Major", "Minor"))
    if not major and not minor:
        raise UsageError(
            f"the request does not say which compaction to {verb}",
            remedy=f"Give {verb}Major, {verb}Minor, or both, as true",
        )
    return major, minor


def _refuser(what: str, remedy: str) -> Any:
    async def refuse(call: Call) -> None:
        raise NotOfferedError(what, remedy=remedy)

    return refuse


async def _durable(bookie: Bookie) -> bool:
    """Wait until everything that was appended to the bookie's log so far is durable.

    Return False if writing it to the disk fails.
    """
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def tell(error: QuireError | None) -> None:
        if not done.done():
            done.set_result(error is None)

    bookie.store.barrier(tell)
    return await done


def _plain(value: Any) -> Any:
    """Return the value of a setting as JSON.

    Settings name the files of secrets and keys, so the result never has their contents.
    """
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return list(value) if isinstance(value, tuple) else value
