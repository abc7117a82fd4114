"""The routes of Apache's HTTP server about the whole cluster.

These are `ledger`, `autorecovery`, and those routes of `bookie` that are not about a single bookie.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from quire._runtime.tasks import EACH_AT_ONCE, each
from quire.client import Client
from quire.codec.metadata.registration import check_bookie_id
from quire.codec.metadata.underreplication import SwitchedOff
from quire.errors import UsageError
from quire.http.routes.jobs import HttpJob, Jobs, attended
from quire.http.server.api import Call, Field, Reply, Route
from quire.http.server.error_responses import NotFoundError
from quire.http.views.ledger_json import described_or_error, ledger_as_apache
from quire.http.watch.observations import space_of
from quire.metadata.ledgers.creation import check_seen, see_ledger
from quire.metadata.ledgers.deletions import note_deletion
from quire.replication.autorecovery.election import auditor_of
from quire.replication.explain.status import marked_ledgers
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.marks.marks import ReplicationMarks
from quire.replication.moves.cookie_removal import identity_of, remove_lost_bookie
from quire.replication.moves.decommission import decommission
from quire.replication.moves.recover import MoveOptions, recover_bookie
from quire.replication.moves.remaining import (
    left_by_decommission,
    left_by_recover,
    still_runs,
)
from quire.streams.ownership.owners import refuse_owned

Connect = Callable[[], Awaitable[Client]]
"""A function that returns the client that all routes share. It connects at the first call."""

LISTED_MAX = 100_000
"""The largest number of ids in an answer of the route that lists ledgers. Apache divides the list
into pages only if metadata is requested."""
METADATA_PAGE = 100
"""The number of ledgers on a page with metadata, as in Java."""
ENTRIES_PAGE = 1_000
"""The number of entries on a page of a ledger's entries, as in Java. No answer has more."""
ENTRIES_BYTES_MAX = 8 * 1024 * 1024
"""The largest number of payload bytes in one page of a ledger's entries."""
DELAY_MAX_S = 2**31 - 1
RESULT_LEDGERS_MAX = 1_000
"""The largest number of ledgers in each list of a job's result. The counts include all ledgers."""

OWNERS_LIMIT_S = 20.0
"""Seconds to search for the owner of a ledger to delete. After that the deletion is refused."""

CHECK = Field(
    "check", "boolean", "first check whether all replicas can be moved, and refuse the job if not "
    "(default true)",
)  # fmt: skip
LEDGER_ID = Field("ledger_id", "integer", "the id of the ledger", required=True)
FORCE = Field(
    "force",
    "boolean",
    "also delete a ledger that a stream, an object, a dataset or another application needs",
)


class ClusterRoutes:
    """The routes about the cluster."""

    def __init__(self, connect: Connect, jobs: Jobs, owner: str) -> None:
        """Create the routes. `owner` is the name of this process in locks and orders."""
        self._connect = connect
        self._jobs = jobs
        self._owner = owner

    def routes(self) -> list[Route]:
        return [*self._ledger(), *self._bookies(), *self._autorecovery()]

    def _ledger(self) -> list[Route]:
        prefix = "/api/v1/ledger"
        entries = (
            LEDGER_ID,
            Field("start_entry_id", "integer", "the first entry (default 0)"),
            Field(
                "end_entry_id", "integer", "the last entry (-1: the last of the ledger)", minimum=-1
            ),
            Field("page", "integer", f"the page, from 1; it has {ENTRIES_PAGE} entries", minimum=1),
        )
        listed = (
            Field("print_metadata", "boolean", "include the metadata of each ledger"),
            Field(
                "page", "integer", f"the page, from 1; it has {METADATA_PAGE} ledgers", minimum=1
            ),
            Field("decode_meta", "boolean", "accepted without effect: metadata is always decoded"),
        )
        return [
            Route("DELETE", f"{prefix}/delete",
                  "Delete a ledger; 409 if a stream, an object or another application needs it",
                  self.delete, query=(LEDGER_ID, FORCE), example="Deleted ledger: 7"),
            Route("GET", f"{prefix}/list", "List the ids of all ledgers", self.list, query=listed,
                  example={"7": None, "8": None}),
            Route("GET", f"{prefix}/metadata", "Return the metadata of a ledger", self.metadata,
                  query=(LEDGER_ID,), example={"7": {"ledgerId": 7, "state": "CLOSED"}}),
            Route("GET", f"{prefix}/read", "Read entries of a ledger as text", self.read,
                  query=entries, example={"0": "hello"}, payloads=True),
        ]  # fmt: skip

    def _bookies(self) -> list[Route]:
        prefix = "/api/v1/bookie"
        listed = (
            Field("type", "string", "rw: writable (default), ro: read-only", choices=("rw", "ro")),
            Field("print_hostnames", "boolean", "include the host of each bookie"),
        )
        return [
            Route("GET", f"{prefix}/list_bookies", "List the registered bookies", self.list_bookies,
                  query=listed, example={"10.0.0.1:3181": "10.0.0.1"}),
            Route("GET", f"{prefix}/list_bookie_info", "Return the disk space of each bookie",
                  self.list_bookie_info,
                  example={"10.0.0.1:3181": {"free": 1, "total": 2},
                           "clusterInfo": {"total_free": 1, "total": 2}}),
            Route("GET", f"{prefix}/cluster_info", "Return a summary of the cluster",
                  self.cluster_info,
                  example={"auditorElected": True, "auditorId": "10.0.0.1:3181",
                           "clusterUnderReplicated": False, "ledgerReplicationEnabled": True,
                           "totalBookiesCount": 3, "writableBookiesCount": 3,
                           "readonlyBookiesCount": 0, "unavailableBookiesCount": 0}),
        ]  # fmt: skip

    def _autorecovery(self) -> list[Route]:
        prefix = "/api/v1/autorecovery"
        enabled = Field("enabled", "boolean", "whether autorecovery is enabled", required=True)
        seconds = Field(
            "delay_seconds",
            "seconds",
            "the seconds to wait for a lost bookie",
            required=True,
            maximum=DELAY_MAX_S,
        )
        marked = (
            Field("missingreplica", "string", "only ledgers that lack a replica on this bookie"),
            Field(
                "excludingmissingreplica", "string", "no ledgers that lack a replica on this bookie"
            ),
            Field("printmissingreplica", "boolean", "include the bookies that lack a replica"),
        )
        source = Field("bookie_src", "strings", "the lost bookie; exactly one", required=True)
        dest = Field(
            "bookie_dest", "strings", "accepted without effect: placement chooses the bookies"
        )
        cookie = Field(
            "delete_cookie", "boolean", "remove the bookie's cookie when no ledger names the bookie"
        )
        bookie = Field("bookie_src", "string", "the bookie", required=True)
        job = {"id": 1, "kind": "recover", "target": "10.0.0.1:3181", "state": "running"}
        return [
            Route("GET", f"{prefix}/status", "Return whether autorecovery is enabled", self.enabled,
                  example={"enabled": True}),
            Route("PUT", f"{prefix}/status", "Enable or disable autorecovery in the whole cluster",
                  self.enable, query=(enabled,), example={"enabled": True}),
            Route("PUT", f"{prefix}/bookie",
                  "Begin a job that replicates the ledgers of a lost bookie",
                  self.recover, body=(source, dest, cookie), example=job),
            Route("GET", f"{prefix}/list_under_replicated_ledger",
                  "List under-replicated ledgers; 404 if there are none", self.marked,
                  query=marked, example=[7, 8]),
            Route("GET", f"{prefix}/who_is_auditor",
                  "Return the id of the auditor", self.auditor,
                  example={"Auditor": "10.0.0.1:3181"}),
            Route("PUT", f"{prefix}/trigger_audit", "Search for lost bookies now", self.trigger,
                  example="Success trigger audit."),
            Route("GET", f"{prefix}/lost_bookie_recovery_delay",
                  "Return the seconds to wait for a single lost bookie before its repair",
                  self.delay,
                  example={"delay_seconds": 0}),
            Route("PUT", f"{prefix}/lost_bookie_recovery_delay",
                  "Set the seconds to wait for a single lost bookie before its repair",
                  self.set_delay,
                  body=(seconds,), example={"delay_seconds": 600}),
            Route("PUT", f"{prefix}/decommission", "Begin a job that removes a bookie permanently",
                  self.decommission, body=(bookie, cookie, CHECK), example=job),
        ]  # fmt: skip

    # -- ledgers ------------------------------------------------------------------------------

    async def delete(self, call: Call) -> str:
        ledger_id = call.query["ledger_id"]
        client = await self._connect()
        force: bool = call.query.get("force", False)
        # This fails if the ledger does not exist.
        seen = await see_ledger(client.metadata, ledger_id, unreadable=force)
        if not force:
            await refuse_owned(client, [ledger_id], limit_s=OWNERS_LIMIT_S)
            await check_seen(client.metadata, seen)
        how = "a request over HTTP"
        await note_deletion(client.metadata, ledger_id, client.clock.now_ms(), how)
        await client.delete_ledger(ledger_id)
        return f"Deleted ledger: {ledger_id}"

    async def list(self, call: Call) -> dict[str, Any]:
        client = await self._connect()
        with_metadata = call.query.get("print_metadata", False)
        page: int = call.query.get("page", 1)
        found = []
        skipped = METADATA_PAGE * (page - 1) if with_metadata else 0
        most = skipped + METADATA_PAGE if with_metadata else LISTED_MAX + 1
        async for ledger_id in client.list_ledgers():
            found.append(ledger_id)
            if len(found) >= most:
                break
        if not with_metadata:
            if len(found) > LISTED_MAX:
                raise UsageError(
                    f"the cluster has more than the {LISTED_MAX} ledgers that one answer may list",
                    remedy="List them page by page with /api/v1/quire/ledgers",
                )
            return dict.fromkeys(map(str, found))
        store, page_ids = client.metadata, found[skipped:]
        described = await each(
            page_ids, lambda one: described_or_error(store, one, ledger_as_apache)
        )
        return {str(one): value for one, value in zip(page_ids, described) if value is not None}

    async def metadata(self, call: Call) -> dict[str, Any]:
        client, ledger_id = await self._connect(), call.query["ledger_id"]
        return {
            str(ledger_id): ledger_as_apache(ledger_id, await client.ledger_metadata(ledger_id))
        }

    async def read(self, call: Call) -> dict[str, str]:
        client, ledger_id = await self._connect(), call.query["ledger_id"]
        first, last = call.query.get("start_entry_id", 0), call.query.get("end_entry_id", -1)
        page = call.query.get("page")
        if page is not None:
            begin = (page - 1) * ENTRIES_PAGE
            end = begin + ENTRIES_PAGE - 1
            first, last = max(first, begin), end if last == -1 else min(last, end)
        metadata = await client.ledger_metadata(ledger_id)
        async with await client.open_ledger(ledger_id, password=metadata.password or b"") as reader:
            confirmed = reader.last_add_confirmed
            last = confirmed if last == -1 or (page is not None and last > confirmed) else last
            if last - first >= ENTRIES_PAGE:
                raise UsageError(
                    f"entries {first} to {last} of ledger {ledger_id} are more than the "
                    f"{ENTRIES_PAGE} that one answer may have",
                    remedy=("Ask for fewer entries (start_entry_id, end_entry_id), or for a page"),
                )
            found: dict[str, str] = {}
            size = 0
            if first <= last:
                async for entry in reader.read(first, last):
                    size += len(entry.payload)
                    if size > ENTRIES_BYTES_MAX:
                        raise UsageError(
                            f"entries {first} to {last} of ledger {ledger_id} have more than the "
                            f"{ENTRIES_BYTES_MAX} bytes that one answer may have",
                            remedy="Ask for fewer entries, or use `quire ledger read`",
                        )
                    found[str(entry.entry_id)] = bytes(entry.payload).decode("ascii", "replace")
        return found

    # -- bookies ------------------------------------------------------------------------------

    async def list_bookies(self, call: Call) -> dict[str, str | None]:
        bookies = await (await self._connect()).bookies()
        readonly = call.query.get("type") == "ro"
        hosts = call.query.get("print_hostnames", False)
        found = bookies.readonly if readonly else bookies.writable
        return {name: found[name].host if hosts else None for name in sorted(found)}

    async def list_bookie_info(self, call: Call) -> dict[str, Any]:
        spaces = await spaces_of(await self._connect())
        known = [space for space in spaces.values() if space is not None]
        total = {
            "total_free": sum(free for free, _ in known),
            "total": sum(total for _, total in known),
        }
        shown: dict[str, Any] = {
            name: None if space is None else {"free": space[0], "total": space[1]}
            for name, space in spaces.items()
        }
        return {**shown, "clusterInfo": total}

    async def cluster_info(self, call: Call) -> dict[str, Any]:
        return await cluster_facts(await self._connect())

    # -- autorecovery -------------------------------------------------------------------------

    async def _marks(self) -> ReplicationMarks:
        return ReplicationMarks((await self._connect()).metadata)

    async def enabled(self, call: Call) -> dict[str, bool]:
        return {"enabled": await (await self._marks()).enabled()}

    async def enable(self, call: Call) -> dict[str, bool]:
        client = await self._connect()
        marks = ReplicationMarks(client.metadata)
        switched = SwitchedOff(f"http.{self._owner}", client.clock.now_ms())
        await (marks.enable() if call.query["enabled"] else marks.disable(switched))
        return {"enabled": await marks.enabled()}

    async def marked(self, call: Call) -> Any:
        client = await self._connect()
        wanted = call.query.get("missingreplica")
        unwanted = call.query.get("excludingmissingreplica")
        found = {
            one.ledger: list(one.replicas)
            async for one in marked_ledgers(client.metadata)
            if (wanted is None or wanted in one.replicas)
            and (unwanted is None or unwanted not in one.replicas)
        }
        if not found:
            raise NotFoundError("No under replicated ledgers found")
        if call.query.get("printmissingreplica"):
            return {str(ledger): replicas for ledger, replicas in found.items()}
        return list(found)

    async def auditor(self, call: Call) -> dict[str, str]:
        found = await auditor_of((await self._connect()).metadata)
        if found is None:
            raise NotFoundError(
                "No auditor elected", remedy="Start one with: quire autorecovery start"
            )
        return {"Auditor": found.owner}

    async def trigger(self, call: Call) -> str:
        await (await self._marks()).trigger()
        return "Success trigger audit."

    async def delay(self, call: Call) -> dict[str, int]:
        return {"delay_seconds": await (await self._marks()).delay_s()}

    async def set_delay(self, call: Call) -> dict[str, int]:
        marks = await self._marks()
        await marks.set_delay(call.body["delay_seconds"])
        return {"delay_seconds": await marks.delay_s()}

    async def recover(self, call: Call) -> Reply:
        if len(call.body["bookie_src"]) != 1:
            raise UsageError(
                f"bookie_src must name exactly one bookie, not {len(call.body['bookie_src'])}",
                remedy="Send one request for each bookie",
            )
        (bookie,) = call.body["bookie_src"]
        check_bookie_id(bookie)
        client = await self._connect()

        removing: bool = call.body.get("delete_cookie", False)

        async def work(job: HttpJob) -> dict[str, Any]:
            before = await identity_of(client.metadata, bookie) if removing else None
            async with attended(client, job, self._owner):
                result = await recover_bookie(client, self._locks(client), bookie, progress=job)
            job.remaining = left_by_recover(result)
            done = result.as_json(RESULT_LEDGERS_MAX)
            if before is not None and result.complete:
                await remove_lost_bookie(client.metadata, bookie, before)
                done["cookie_removed"] = True
            return done

        given = {"delete_cookie": removing}
        return Reply(202, self._jobs.start("recover", bookie, work, given).as_json())

    async def decommission(self, call: Call) -> Reply:
        bookie = call.body["bookie_src"]
        check_bookie_id(bookie)
        client = await self._connect()
        given = {
            "delete_cookie": call.body.get("delete_cookie", True),
            "check": call.body.get("check", True),
        }

        async def work(job: HttpJob) -> dict[str, Any]:
            async with attended(client, job, self._owner):
                result = await decommission(
                    client,
                    self._locks(client),
                    bookie,
                    owner=self._owner,
                    now_ms=client.clock.now_ms,
                    keep_cookie=not given["delete_cookie"],
                    options=MoveOptions(check=given["check"]),
                    progress=job,
                )
            job.remaining = left_by_decommission(result)
            job.advice = still_runs(result)
            return result.as_json(RESULT_LEDGERS_MAX)

        return Reply(202, self._jobs.start("decommission", bookie, work, given).as_json())

    def _locks(self, client: Client) -> ReplicationLocks:
        return ReplicationLocks(client.metadata, self._owner, client.clock)


async def cluster_facts(client: Client) -> dict[str, Any]:
    """Return the numbers of bookies, the auditor, and whether any ledger is marked, as JSON.

    The names are those of Apache's HTTP server. Raises MetadataError.
    """
    store = client.metadata
    marks, bookies = ReplicationMarks(store), await client.bookies()
    auditor = await auditor_of(store)
    known = {*await store.list_cookies(), *bookies.writable, *bookies.readonly}
    readonly = set(bookies.readonly) - set(bookies.writable)
    lacking = False
    async for _ in marks.walk():
        lacking = True
        break
    return {
        "auditorElected": auditor is not None,
        "auditorId": auditor.owner if auditor is not None else "",
        "clusterUnderReplicated": lacking,
        "ledgerReplicationEnabled": await marks.enabled(),
        "totalBookiesCount": len(known),
        "writableBookiesCount": len(bookies.writable),
        "readonlyBookiesCount": len(readonly),
        "unavailableBookiesCount": len(known) - len(bookies.writable) - len(readonly),
    }


async def spaces_of(client: Client) -> dict[str, tuple[int, int] | None]:
    """Return the free and total bytes of each registered bookie, or None if it did not answer.

    Raises MetadataError if the list of bookies cannot be read.
    """
    found = await client.bookies()
    names = sorted({**found.writable, **found.readonly})

    async def ask(name: str) -> tuple[int, int] | None:
        space = await space_of(client, name)
        return None if space is None else (space.free_bytes, space.total_bytes)

    return dict(zip(names, await each(names, ask, max(EACH_AT_ONCE, len(names))), strict=True))
