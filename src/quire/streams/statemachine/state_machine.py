"""Replicated state machines: a log of commands in a stream, and snapshots as objects.

    async with client.state_machine("/team", "accounts", Accounts(), create=True) as leader:
        balance = await leader.execute(b"deposit 5")

There is one leader: the last one that opened the machine. The leader before it is fenced by the
stream, so that none of its commands is accepted any more, and all that were are applied here first.
Commands are applied in the order of the log, once they are durable, and on every follower in the
same order: machines that decide by nothing but their commands stay equal.

A snapshot keeps the state together with the position behind the last command that made it; what
lies before the position is then truncated. It is an object: seen whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from quire._runtime.opening import open_or_closed, opening, represented
from quire.client.client import end_with_client
from quire.client.write.writer import payload_bytes
from quire.codec.distributedlog.dlsn import DLSN, INITIAL_DLSN
from quire.codec.distributedlog.name import stream_name
from quire.errors import (
    ArgumentTypeError,
    ClientClosedError,
    NoSuchObjectError,
    ObjectDamagedError,
    ObjectExistsError,
    QuireError,
    StreamClosedError,
    StreamDamagedError,
    StreamFencedError,
    StreamGapError,
    UsageError,
    check_type,
)
from quire.streams.namespace.namespace import Namespace
from quire.streams.objects.format import ObjectInfo, check_name
from quire.streams.objects.objects import Objects
from quire.streams.read.records import RecordBatch
from quire.streams.write.pending_entry import Appended
from quire.streams.write.writer import StreamWriter

ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)

BUCKET = "state-machines"
POSITION_KEY = "position"
"""In the metadata of a snapshot: where to read on."""
APPLIED_KEY = "applied"
LIFE_KEY = "life"
"""The key in the metadata of a snapshot for the id of the life that the position belongs to.
Snapshots of earlier versions lack it."""
RESTORE_ATTEMPTS = 10
"""Of reading a snapshot, while leaders take later ones."""
NOTHING = b""
"""A command that no machine is given: it only proves that the leader still leads."""


class StateMachine(Protocol[ResultT_co]):
    """What is replicated. `apply` must depend on the state and the command only: no clock, no
    randomness, no reading of the outside. What it raises is given to the caller of `execute` (the
    command stays in the log; it must raise the same everywhere)."""

    def apply(self, command: bytes) -> ResultT_co: ...

    def snapshot(self) -> bytes:
        """The whole state. Called between two commands."""
        ...

    def restore(self, state: bytes) -> None: ...


def check_machine(machine: object) -> None:
    """Raise ArgumentTypeError unless the object has the methods of a state machine."""
    remedy = "Give an object with apply(command), snapshot() and restore(state)"
    if isinstance(machine, type):
        raise ArgumentTypeError(
            f"{machine.__name__} is a class, and not a state machine", remedy=remedy
        )
    for method in ("apply", "snapshot", "restore"):
        if not callable(getattr(machine, method, None)):
            raise ArgumentTypeError(
                f"{type(machine).__name__} is not a state machine: it has no method {method!r}",
                remedy=remedy,
            )


class _Replica(Generic[ResultT]):
    """A machine, and how far it has come along the log."""

    name: str
    """The name of the stream that holds the commands."""
    machine: StateMachine[ResultT]
    """The machine itself."""
    applied: int
    """The number of commands so far, those that a snapshot stands for included."""

    def __init__(self, streams: Namespace, name: str, machine: StateMachine[ResultT]) -> None:
        check_machine(machine)
        self.name = name
        self.machine = machine
        self.applied = 0
        self._streams = streams
        self._snapshots = Objects(streams.client, BUCKET)
        # Check the name of the snapshots now, not at the first snapshot.
        self._object = check_name(f"{streams.path.strip('/')}/{stream_name(name)}")
        self._position = INITIAL_DLSN
        self._lost_snapshot: ObjectDamagedError | None = None
        self.owns_streams = False
        """Whether the namespace was opened for this replica, and is closed with it."""
        self._ended: QuireError | None = None
        """The error of calls after the end, and of those that waited for something then."""
        self._tasks = end_with_client(streams.client, self)

    @property
    def closed(self) -> bool:
        """Whether this handle was closed, by itself or with its client."""
        return self._ended is not None

    def __repr__(self) -> str:
        state = open_or_closed(self.closed)
        return represented(self, state, f"applied={self.applied}", name=self.name)

    async def _client_closed(self, error: ClientClosedError) -> None:
        await self._end(error)

    async def _end(self, error: QuireError) -> None:
        if self._ended is None:
            self._ended = error
        await self._tasks.close()

    async def _close(self) -> None:
        await self._end(StreamClosedError(f"state machine {self.name} is closed"))
        if self.owns_streams:
            await self._streams.close()

    async def _restore(self) -> None:
        for attempt in range(RESTORE_ATTEMPTS):
            try:
                found = await self._snapshots.get(self._object)
            except NoSuchObjectError:
                return
            except ObjectDamagedError as error:
                self._lost_snapshot = error  # the log may still have all commands
                return
            try:
                async with found:
                    state = await found.read_all()
                break
            except NoSuchObjectError:  # another took its place while it was read
                if attempt == RESTORE_ATTEMPTS - 1:
                    raise
        await self._check_life(found.info)
        self.machine.restore(state)
        self._position = _position(found.info)
        self.applied = int(found.info.metadata[APPLIED_KEY])

    async def _check_life(self, snapshot: ObjectInfo) -> None:
        """Raise StreamDamagedError if the snapshot belongs to a former stream of this name."""
        life = await self._streams.metadata(self.name).life_id()
        if life and snapshot.metadata.get(LIFE_KEY, life) != life:
            raise StreamDamagedError(
                f"the snapshot of state machine {self.name} (object {BUCKET}/{self._object}) was "
                "taken of a stream that was deleted or renamed: its position means nothing in the "
                "present stream",
                remedy="Give the new state machine another name, or bring back the former stream",
            )

    async def _replay(self, *, follow: bool) -> AsyncGenerator[None, None]:
        """Apply what the log has from the position on; yields behind each entry."""
        # Not from the oldest record that there is: what came before it would be missing unnoticed.
        reader = await self._streams.open_reader(self.name, start=self._position, follow=follow)
        async with aclosing(reader.batches()) as batches:
            try:
                async for batch in batches:
                    assert isinstance(batch, RecordBatch)
                    for record in batch:
                        self._apply(record.payload)
                        self._position = record.position.next_slot()
                    yield
            except StreamGapError as gap:
                if self._lost_snapshot is None:
                    raise
                raise StreamDamagedError(
                    f"state machine {self.name} cannot be restored: {gap}, and the snapshot that "
                    f"stands for them is lost: {self._lost_snapshot}"
                ) from gap

    def _apply(self, command: bytes) -> None:
        if command != NOTHING:
            self.applied += 1
            try:
                self.machine.apply(command)
            except Exception:  # noqa: BLE001 - it was told to who executed the command
                pass


class Leader(_Replica[ResultT]):
    """The replica that takes commands. Made by `Client.state_machine`.

    Use as `async with`, or call `close`."""

    def __init__(
        self,
        streams: Namespace,
        name: str,
        machine: StateMachine[ResultT],
        *,
        snapshot_every: int = 0,
    ) -> None:
        check_type("snapshot_every", snapshot_every, int)
        if snapshot_every < 0:
            raise UsageError(f"snapshot_every is a number of commands, or 0, not {snapshot_every}")
        super().__init__(streams, name, machine)
        self._snapshot_every = snapshot_every
        self._snapshot_at = 0
        self._waiting: deque[tuple[Appended, bytes, asyncio.Future[ResultT | None]]] = deque()
        self._more = asyncio.Event()
        self._writer: StreamWriter
        self._busy = asyncio.Lock()
        """Held while a snapshot is taken, against a second one."""

    async def _begin(self, create: bool) -> None:
        self._writer = await self._streams.open_writer(self.name, create=create)
        try:
            await self._restore()
            async with aclosing(self._replay(follow=False)) as steps:
                async for _ in steps:
                    pass
        except BaseException:
            self._writer.abandon()
            raise
        self._snapshot_at = self.applied
        self._tasks.start(self._run())

    async def execute(self, command: bytes) -> ResultT:
        """Append the command, wait until it is durable on the ack quorum, apply it; what `apply`
        returned, or raised.

        Raises UsageError for an empty command (nothing happened); StreamFencedError when another
        leader has come, and what an append raises: the command may or may not be applied by the
        next leader. If cancelled, it may still be applied."""
        command = payload_bytes(command, "a command")
        if command == NOTHING:
            raise UsageError("a command must not be empty")
        result: ResultT = await self._submit(command)  # type: ignore[assignment]
        return result

    async def confirm(self) -> None:
        """Prove that this is the leader still: all that was ever acknowledged by any leader is
        applied when this returns. For reads that must not be stale. Raises as `execute`."""
        await self._submit(NOTHING)

    async def snapshot(self) -> None:
        """Keep the state as it is now, and truncate the commands before it. Durable on return."""
        async with self._busy:
            await self.confirm()
            state, applied = self.machine.snapshot(), self.applied
            position = self._position
            life = await self._streams.metadata(self.name).life_id()
            metadata = {POSITION_KEY: str(position), APPLIED_KEY: str(applied), LIFE_KEY: life}
            if not life:
                del metadata[LIFE_KEY]
            try:
                await self._snapshots.put(
                    self._object, state, replace=lambda old: _position(old) <= position,
                    metadata=metadata,
                )  # fmt: skip
            except ObjectExistsError as error:
                raise StreamFencedError(
                    f"another leader of state machine {self.name} has taken a later snapshot"
                ) from error
            self._snapshot_at = applied
            await self._streams.truncate(self.name, position)

    async def close(self) -> None:
        """Wait for the commands under way, then close the stream's segment. Raises what ended the
        leader, if anything did."""
        try:
            while self._waiting:
                await asyncio.wait([self._waiting[-1][2]])
            await self._writer.close()
        finally:
            await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            self._writer.abandon()
            await self._close()

    # -- inside -------------------------------------------------------------------------------

    async def _end(self, error: QuireError) -> None:
        error.outcome_known = False  # of the commands under way
        await super()._end(error)
        self._fail(error)

    async def _submit(self, command: bytes) -> ResultT | None:
        appended = await self._writer.submit_many((command,))
        if self._ended is not None:  # nobody applies commands any more
            raise self._ended
        result: asyncio.Future[ResultT | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((appended, command, result))
        self._more.set()
        return await asyncio.shield(result)

    async def _run(self) -> None:
        """Apply commands in the order of the log, whoever still waits for them."""
        while True:
            while self._waiting:
                appended, command, result = self._waiting[0]
                try:
                    await appended.wait()
                except QuireError as error:
                    self._fail(error)
                    return
                self._waiting.popleft()
                self._settle(command, result)
                self._position = appended.last.next_slot()
                if self._snapshot_is_due():
                    self._tasks.start(self._snapshot_quietly())
            self._more.clear()
            await self._more.wait()

    def _settle(self, command: bytes, result: asyncio.Future[ResultT | None]) -> None:
        if command == NOTHING:
            result.set_result(None)
            return
        self.applied += 1
        try:
            result.set_result(self.machine.apply(command))
        except Exception as error:  # noqa: BLE001 - the machine's own: for who executed it
            result.set_exception(error)
            result.exception()

    def _fail(self, error: QuireError) -> None:
        for _, _, result in self._waiting:
            result.set_exception(error)
            result.exception()
        self._waiting.clear()

    def _snapshot_is_due(self) -> bool:
        every = self._snapshot_every
        return bool(every) and self.applied - self._snapshot_at >= every and not self._busy.locked()

    async def _snapshot_quietly(self) -> None:
        try:
            await self.snapshot()
        except QuireError:
            pass  # The log is complete without it; the next command tries again.


class Follower(_Replica[ResultT]):
    """A replica that applies what leaders have executed, as it comes. Made by
    `Client.state_machine(follow=True)`."""

    failure: QuireError | None
    """The error that ended it, if one did."""

    def __init__(self, streams: Namespace, name: str, machine: StateMachine[ResultT]) -> None:
        super().__init__(streams, name, machine)
        self.failure = None
        self._moved = asyncio.Condition()

    async def _begin(self) -> None:
        await self._restore()
        self._tasks.start(self._run())

    async def _run(self) -> None:
        while self.failure is None:
            try:
                async with aclosing(self._replay(follow=True)) as steps:
                    async for _ in steps:
                        await self._tell()
                self.failure = StreamClosedError(f"state machine {self.name} has come to its end")
            except StreamGapError:
                await self._catch_up()
                await self._tell()
            except QuireError as error:
                self.failure = error
        await self._tell()

    async def _catch_up(self) -> None:
        """The commands it waited for are truncated: a snapshot stands for them."""
        before = self._position
        try:
            await self._restore()
            if self._position <= before:
                raise StreamDamagedError(
                    f"state machine {self.name} lost commands for which no snapshot stands"
                )
        except QuireError as error:
            self.failure = error

    async def _tell(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def wait_applied(self, count: int) -> None:
        """Until so many commands (`Leader.applied`) are applied here. Raises what ended it."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.applied >= count or self._over is not None)
        if self.applied < count and self._over is not None:
            raise self._over

    @property
    def _over(self) -> QuireError | None:
        """The error of those who wait for commands, once none comes any more."""
        return self.failure or self._ended

    async def close(self) -> None:
        """Stop following. Calls that wait raise StreamClosedError."""
        await self._close()

    async def _end(self, error: QuireError) -> None:
        await super()._end(error)
        await self._tell()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _position(snapshot: ObjectInfo) -> DLSN:
    """Where to read on behind it."""
    return DLSN.parse(snapshot.metadata[POSITION_KEY])


@opening
async def lead(
    streams: Namespace,
    name: str,
    machine: StateMachine[ResultT],
    *,
    snapshot_every: int = 0,
    create: bool = True,
) -> Leader[ResultT]:
    """Become the leader: fence the one before, bring `machine` (a fresh one) to where it was, and
    take commands. With `create` a missing stream is made. `snapshot_every`: so many commands.

    Raises what `Namespace.open_writer` and reading raise; then nothing is lost, call it again."""
    leader = Leader(streams, name, machine, snapshot_every=snapshot_every)
    await leader._begin(create)
    return leader


@opening
async def follow(
    streams: Namespace, name: str, machine: StateMachine[ResultT]
) -> Follower[ResultT]:
    """Keep a second machine up to date, to read from or to take over quickly. NoSuchStreamError."""
    follower = Follower(streams, name, machine)
    await streams.metadata(name).require()
    await follower._begin()
    return follower
