"""The invariants of objects, and what is known of each version.

The heads of objects are followed at every change of the metadata store. So it is known which
version a name had at any moment of a call, and each answer is compared with that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from quire.errors import NoSuchLedgerError, NoSuchObjectError, ObjectDamagedError, QuireError
from quire.streams.objects.format import HEADS, ObjectInfo, decode_head, head_key
from quire_simulator.invariants.checker import Checker
from quire_simulator.world.world import World

BUCKET = "sim"
PUT_KEY = "put"
"""The key in an object's metadata for the name of the put that stored it."""


@dataclass(slots=True)
class ObjectVersion:
    """What one put stores."""

    name: str
    data: bytes
    stored: ObjectInfo | None = None
    """What the put returned, or None if it has not succeeded."""
    active: bool = True
    """Whether the put has not ended, or died."""
    taken_back: bool = False
    """Whether the head was deleted while the put ran.

    A put does that itself if a sweep had condemned the ledger before. If others delete the head
    just before, it cannot tell the difference.
    """


@dataclass(slots=True)
class ObjectCall:
    """A call of one client."""

    client: str
    kind: str
    """put, delete, get, list or sweep."""
    name: str
    begun: int
    """The moment at which the call began."""
    put: str = ""
    """The name of the put."""
    replace: bool = False
    """Whether a put may replace any version."""
    approved: set[str] = field(default_factory=set)
    """The puts whose versions the `replace` function has agreed to replace."""
    shown: list[str | None] = field(default_factory=list)
    """The versions of the name that the client has read in this call, by their puts."""


class ObjectInvariants:
    """A checker of the invariants of the objects of one bucket."""

    def __init__(self, world: World, checker: Checker) -> None:
        self.checker = checker
        self.world = world
        self.versions: dict[str, ObjectVersion] = {}
        """Each version that anybody tried to put, by the name of the put."""
        self.heads: dict[str, list[tuple[int, str | None]]] = {}
        """The versions of each name in order, each with the moment at which it came."""
        self.ledgers: dict[int, str] = {}
        """The put that wrote each ledger that a head has named."""
        self._moment = 0
        self._calls: dict[str, ObjectCall] = {}
        self._keys: dict[tuple[str, ...], str] = {}
        self._on_ledger = checker.on_ledger
        checker.on_ledger = self._ledger_changed
        world.cluster.value_shown_observer = self._shown
        world.cluster.value_observer = self._changed

    # -- calls --------------------------------------------------------------------------------

    def begin(self, client: str, kind: str, name: str = "") -> ObjectCall:
        """Record that a client begins a call. It may have one at a time."""
        if name:
            self._keys[head_key(BUCKET, name)] = name
        call = self._calls[client] = ObjectCall(client, kind, name, self._moment)
        return call

    def begin_put(self, client: str, name: str, put: str, data: bytes) -> ObjectCall:
        call = self.begin(client, "put", name)
        call.put = put
        self.versions[put] = ObjectVersion(name, data)
        return call

    def end(self, call: ObjectCall) -> None:
        """Record that a call has ended. Its client changes nothing until its next call."""
        if self._calls.get(call.client) is call:
            del self._calls[call.client]
        if call.put:
            self.versions[call.put].active = False

    def now(self, name: str) -> str | None:
        """Return the put of the present version of a name, or None if there is no object."""
        return self.heads.get(name, [(0, None)])[-1][1]

    def during(self, call: ObjectCall, name: str = "") -> set[str | None]:
        """Return all versions that the name has had since the call began."""
        heads = self.heads.get(name or call.name, [(0, None)])
        first = max((k for k, (at, _) in enumerate(heads) if at <= call.begun), default=0)
        return {put for _, put in heads[first:]}

    # -- the metadata store -------------------------------------------------------------------

    def _shown(self, key: tuple[str, ...], data: bytes | None) -> None:
        name, call = self._keys.get(key), self._calls.get(self.world.metadata_caller)
        if name is not None and call is not None and call.name in ("", name):
            call.shown.append(_put_of(name, data))

    def _changed(self, key: tuple[str, ...], before: bytes | None, after: bytes | None) -> None:
        name = self._keys.get(key)
        if name is None or key[0] != HEADS or before == after:
            return
        self._moment += 1
        old, new = _put_of(name, before), _put_of(name, after)
        caller = self.world.metadata_caller
        heads = self.heads.setdefault(name, [(0, None)])
        if new is not None:
            self.ledgers[decode_head(name, after or b"").ledger_id] = new
        self._judge_change(name, old, new, caller, {put for _, put in heads})
        heads.append((self._moment, new))
        if old is not None and new is None and self.versions[old].active:
            self.versions[old].taken_back = True

    def _judge_change(
        self, name: str, old: str | None, new: str | None, caller: str, former: set[str | None]
    ) -> None:
        call = self._calls.get(caller)
        self.checker.checks += 1
        what = f"{caller} changed object {name} from {old} to {new}"
        if new in former and new is not None and (call is None or call.put != new):
            self.checker.fail("a_former_version_stays_away", f"{what}, which it had before")
        elif call is None:
            self.checker.fail("a_change_is_what_was_asked_for", f"{what} after its call")
        elif not call.shown or call.shown[-1] != old:
            seen = call.shown[-1] if call.shown else "nothing"
            self.checker.fail("a_change_replaces_what_was_read", f"{what}, but had read {seen}")
        elif not self._asked_for(call, name, old, new):
            self.checker.fail("a_change_is_what_was_asked_for", f"{what} in a {call.kind}")

    def _asked_for(self, call: ObjectCall, name: str, old: str | None, new: str | None) -> bool:
        if name != call.name:
            return False
        if new is None:
            return call.kind == "delete" or call.put == old
        if new != call.put:
            return False
        # A version without a ledger was never acknowledged, and its put is about to take it back.
        lost = old is None or self._is_lost(old)
        return call.replace or old in call.approved or lost

    def _is_lost(self, put: str) -> bool:
        there = self.world.cluster.ledgers
        return not any(one == put and ledger_id in there for ledger_id, one in self.ledgers.items())

    def _ledger_changed(self, ledger_id: int) -> None:
        self._on_ledger(ledger_id)
        put = self.ledgers.get(ledger_id)
        if put is None or ledger_id in self.world.cluster.ledgers:
            return
        version = self.versions[put]
        if version.stored is not None and self.now(version.name) == put:
            caller = self.world.metadata_caller
            what = f"{caller} deleted ledger {ledger_id}, which object {version.name} names"
            self.checker.fail("an_object_keeps_its_ledger", what)

    # -- what calls return --------------------------------------------------------------------

    def was_put(self, call: ObjectCall, info: ObjectInfo) -> None:
        """Check a put that succeeded. Call this before `end`."""
        version, name = self.versions[call.put], call.name
        version.stored = info
        if call.put not in self.during(call):
            what = f"{call.client} was told that {name} has {call.put}, which it never had"
            self.checker.fail("an_object_is_there", what)
        if self.now(name) == call.put and info.ledger_id not in self.world.cluster.ledgers:
            what = f"ledger {info.ledger_id} of object {name} was deleted before its put returned"
            self.checker.fail("an_object_keeps_its_ledger", what)
        self.described(call, info)

    def was_not_put(self, call: ObjectCall, error: QuireError) -> None:
        """Check a put that failed: if its outcome is known, the object was not stored."""
        taken_back = self.versions[call.put].taken_back and isinstance(error, NoSuchLedgerError)
        if error.outcome_known and call.put in self.during(call) and not taken_back:
            what = f"{call.client} put {call.put} as {call.name}, although it was told: {error}"
            self.checker.fail("what_was_refused_is_not_done", what)

    def was_deleted(self, call: ObjectCall, existed: bool) -> None:
        """Check a deletion that succeeded."""
        gone = call.shown[0] if call.shown else None
        if existed != (gone is not None):
            what = f"{call.client} was told {existed}, but had read {gone}"
            self.checker.fail("an_object_is_there", f"a deletion of {call.name}: {what}")
        if gone is not None and self.now(call.name) == gone and not self.versions[gone].active:
            what = f"{call.client} has deleted {gone} of {call.name}, which is still there"
            self.checker.fail("a_deleted_object_is_gone", what)

    def described(self, call: ObjectCall, info: ObjectInfo) -> None:
        """Check the description of an object that a call has returned."""
        put = info.metadata.get(PUT_KEY)
        if put not in self.during(call, info.name):
            what = f"{call.client} found {put} as {info.name}, which was not there during the call"
            self.checker.fail("a_version_is_the_present_one", what)
            return
        version = self.versions[put or ""]
        if info.size_bytes != len(version.data):
            what = f"{call.client} found {info.size_bytes} bytes of {len(version.data)} in {put}"
            self.checker.fail("an_object_is_whole", what)
        if version.stored is not None and version.stored != info:
            what = f"{call.client} found {info} instead of {version.stored}"
            self.checker.fail("an_object_is_whole", what)

    def was_read(
        self, call: ObjectCall, info: ObjectInfo, data: bytes, first: int, size: int | None
    ) -> None:
        """Check the bytes of a version from `first` on, of which `size` were to be read."""
        version = self.versions[info.metadata[PUT_KEY]]
        end = None if size is None else first + size
        if data != version.data[first:end]:
            what = (
                f"{call.client} read {len(data)} bytes from byte {first} of {info.name}, which are "
                f"not those of {info.metadata[PUT_KEY]}"
            )
            self.checker.fail("an_object_is_whole", what)

    def was_not_read(self, call: ObjectCall, error: QuireError, put: str | None = None) -> None:
        """Check an error of a call that reads a name, or one version of it that was opened."""
        there = self.during(call)
        absent = isinstance(error, NoSuchObjectError)
        if put is None:
            denied = absent and None not in there
        else:
            denied = absent and there == {put} and self.versions[put].stored is not None
        if denied:
            what = f"{call.client} was told about {call.name}, which was there: {error}"
            self.checker.fail("an_object_is_there", what)
        # Before a put returns, a sweep may delete the ledger that it has just published.
        unsure = any(
            one is not None and self.versions[one].stored is None and self._is_lost(one)
            for one in there
        )
        if isinstance(error, ObjectDamagedError) and not unsure:
            what = f"{call.client} was told about {call.name}, which nobody has damaged: {error}"
            self.checker.fail("an_object_is_there", what)

    def were_listed(
        self, call: ObjectCall, infos: Iterable[ObjectInfo], prefix: str = "", after: str = ""
    ) -> None:
        """Check a listing of the objects with a prefix and after a name."""
        found = [info.name for info in infos]
        for name in self.heads:
            there = self.during(call, name)
            if not name.startswith(prefix) or name <= after:
                if name in found:
                    what = f"{call.client} listed {name}, not only {prefix!r} after {after!r}"
                    self.checker.fail("a_listing_is_in_order", what)
                continue
            if name not in found and None not in there:
                what = f"{call.client} listed {found} without {name}, which was there"
                self.checker.fail("an_object_is_there", what)
        if found != sorted(set(found)):
            self.checker.fail("a_listing_is_in_order", f"{call.client} listed {found}")

    def were_swept(self, call: ObjectCall, ledger_ids: Iterable[int]) -> None:
        """Check the ledgers that a sweep has deleted."""
        for ledger_id in ledger_ids:
            if ledger_id in self.world.cluster.ledgers:
                what = f"{call.client} swept ledger {ledger_id}, which is still there"
                self.checker.fail("no_ledger_is_left_of_an_object", what)


def _put_of(name: str, data: bytes | None) -> str | None:
    """Return the put whose version a head describes."""
    return None if data is None else decode_head(name, data).metadata.get(PUT_KEY)
