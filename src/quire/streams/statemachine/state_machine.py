"""Replicated state machines: a log of commands in a stream, and snapshots as objects.

    async with client.state_machine("/team", "accounts", Accounts(), create=True) as leader:
        balance = await leader.execute(b"deposit 5")

There is one leader, which is the last client that opened the machine as leader. The stream fences
the previous leader, so that none of its later commands is accepted. The new leader first applies
all commands that were accepted before. Commands are applied once they are durable, in the order of
the log, and in the same order on every follower. Machines that depend on nothing but their commands
therefore stay equal.

A snapshot stores the state together with the position after the last command that led to it. The
log before that position is then truncated. A snapshot is an object, so it is visible completely or
not at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from quire._runtime.opening import open_or_closed, opening, represented
from quire.client.client import end_with_client
from quire.client.write.writer import payload_bytes
from quire.codec.distributedlog.dlsn import INITIAL_DLSN
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
    nothing_done,
    whole_number,
)
from quire.streams.namespace.namespace import Namespace
from quire.streams.namespace.truncation import free, truncate
from quire.streams.objects.format import ObjectInfo
from quire.streams.objects.objects import Objects
from quire.streams.read.records import RecordBatch
from quire.streams.statemachine.snapshot_info import (
    APPLIED_KEY,
    BUCKET,
    LIFE_KEY,
    POSITION_KEY,
    snapshot_info,
    snapshot_name,
)
from quire.streams.write.pending_entry import Appended
from quire.streams.write.writer import StreamWriter

ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)

RESTORE_ATTEMPTS = 10
"""The largest number of attempts to read a snapshot.

An attempt fails if a leader replaces the snapshot with a newer one meanwhile.
"""
TRIES_BETWEEN_SNAPSHOTS = 10
"""The number of times that a failed automatic snapshot is tried again within `snapshot_every`
commands."""
ENDS_PROCESS = (KeyboardInterrupt, SystemExit)
"""The errors that end the event loop, wherever they are raised.

Any other error of a machine, also a BaseException such as CancelledError, belongs to the caller of
`execute`. It must not end the task that applies the commands, for which all callers wait.
"""
NOTHING = b""
"""An empty command, which no machine receives. It only proves that the leader still leads."""

logger = logging.getLogger("quire.streams")


class StateMachine(Protocol[ResultT_co]):
    """A state machine that can be replicated.

    `apply` must depend on the state and the command only, and not on a clock, random numbers or
    anything outside. If it raises, `execute` raises the same error. The command stays in the log,
    so `apply` must raise the same error everywhere.
    """

    def apply(self, command: bytes) -> ResultT_co:
        """Apply a command to the state.

        Args:
            command: The command, which is not empty.

        Returns:
            The result, which `Leader.execute` returns.
        """
        ...

    def snapshot(self) -> bytes:
        """Return the whole state. It is called between two commands."""
        ...

    def restore(self, state: bytes) -> None:
        """Replace the state.

        Args:
            state: A state as `snapshot` returned it.
        """
        ...


def check_machine(machine: object) -> None:
    """Check that an object is a state machine.

    Args:
        machine: The argument of the caller.

    Raises:
        ArgumentTypeError: It is a class, or it lacks a method of `StateMachine`.
    """
    remedy = "Pass an object with apply(command), snapshot() and restore(state)"
    if isinstance(machine, type):
        raise ArgumentTypeError(
            f"{machine.__name__} is a class, but the argument must be an object that is a state "
            "machine",
            remedy=remedy,
        )
    for method in ("apply", "snapshot", "restore"):
        if not callable(getattr(machine, method, None)):
            raise ArgumentTypeError(
                f"{type(machine).__name__} is not a state machine: it has no method {method!r}",
                remedy=remedy,
            )


class _Replica(Generic[ResultT]):
    """A state machine, and the position in the log that it has reached."""

    name: str
    """The name of the stream that holds the commands."""
    machine: StateMachine[ResultT]
    """The application's state machine, to which the commands are applied."""
    applied: int
    """The number of commands that were applied, including those that a snapshot contains."""

    def __init__(self, streams: Namespace, name: str, machine: StateMachine[ResultT]) -> None:
        check_machine(machine)
        self.name = name
        self.machine = machine
        self.applied = 0
        self._streams = streams
        self._snapshots = Objects(streams.client, BUCKET)
        # Check the name of the snapshots now, not at the first snapshot.
        self._object = snapshot_name(streams.path, name)
        self._position = INITIAL_DLSN
        self._lost_snapshot: ObjectDamagedError | None = None
        """The error with which the snapshot was last read, or None if it could be read."""
        self.owns_streams = False
        """Whether the namespace was opened for this replica, and is closed with it."""
        self._ended: QuireError | None = None
        """The error that calls raise once this handle is closed, or None while it is open.

        Calls that wait at that moment raise it as well.
        """
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
        try:
            await self._end(
                StreamClosedError(f"state machine {self.name} is closed", remedy="Open it again")
            )
        finally:
            if self.owns_streams:
                await self._streams.close()

    async def _restore(self) -> None:
        self._lost_snapshot = None
        for attempt in range(RESTORE_ATTEMPTS):
            try:
                found = await self._snapshots.get(self._object)
            except NoSuchObjectError:
                return
            except ObjectDamagedError as error:
                self._lost_snapshot = error  # the log may still hold all commands
                return
            try:
                async with found:
                    state = await found.read_all()
                break
            except NoSuchObjectError:  # a newer snapshot replaced it while it was read
                if attempt == RESTORE_ATTEMPTS - 1:
                    raise
        await self._check_life(found.info)
        known = snapshot_info(found.info)
        self.machine.restore(state)
        self._position = known.position
        self.applied = known.applied

    async def _restore_newer(self, gap: StreamGapError) -> None:
        """Restore the snapshot that contains the commands in the gap.

        Raises StreamDamagedError if no snapshot contains them.
        """
        before = self._position
        await self._restore()
        if self._lost_snapshot is not None or self._position <= before:
            raise self._missing(gap) from gap

    async def _check_life(self, snapshot: ObjectInfo) -> None:
        """Raise StreamDamagedError if the snapshot belongs to a former stream of this name."""
        life = await self._streams.metadata(self.name).life_id()
        if life and snapshot.metadata.get(LIFE_KEY, life) != life:
            raise StreamDamagedError(
                f"the snapshot of state machine {self.name} (object {BUCKET}/{self._object}) "
                "belongs to a stream that was deleted or renamed, so it cannot be used with the "
                "present stream",
                remedy="Give the new state machine another name, or restore the former stream",
            )

    async def _replay(self, *, follow: bool) -> AsyncGenerator[None, None]:
        """Apply the commands of the log from the position on. Yields after each entry."""
        # Do not begin at the oldest record that exists: commands before it would be missing
        # unnoticed.
        reader = await self._streams.open_reader(self.name, start=self._position, follow=follow)
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                assert isinstance(batch, RecordBatch)
                for record in batch:
                    self._apply(record.payload)
                    self._position = record.position.next_slot()
                yield

    def _missing(self, gap: StreamGapError) -> StreamDamagedError:
        """Return the error for commands that neither the stream nor a usable snapshot contains."""
        missing = f"commands are missing ({gap.args[0]})"
        if self._lost_snapshot is not None:
            return StreamDamagedError(
                f"state machine {self.name} cannot be restored: {missing}, and the snapshot that "
                f"contains them is lost ({self._lost_snapshot.args[0]})",
                remedy="If another replica has applied these commands, let it lead and "
                "store a snapshot. Otherwise restore the stream or the snapshot "
                "from a copy",
            )
        return StreamDamagedError(
            f"state machine {self.name} cannot be restored: {missing}, and no snapshot contains "
            "them",
            remedy="If another replica has applied these commands, let it lead and store a "
            "snapshot. Otherwise restore the stream from a copy",
        )

    def _apply(self, command: bytes) -> None:
        if command != NOTHING:
            self.applied += 1
            try:
                self.machine.apply(command)
            except ENDS_PROCESS:
                raise
            except BaseException:  # noqa: BLE001 - the caller of `execute` received this error
                pass


class Leader(_Replica[ResultT]):
    """The replica that executes commands. `Client.state_machine` opens it.

    Use it with `async with`, or call `close`.
    """

    def __init__(
        self,
        streams: Namespace,
        name: str,
        machine: StateMachine[ResultT],
        *,
        snapshot_every: int = 0,
    ) -> None:
        snapshot_every = whole_number("snapshot_every", snapshot_every)
        if snapshot_every < 0:
            raise UsageError(
                "snapshot_every must be a number of commands, or 0 for no snapshots, not "
                f"{snapshot_every!r}"
            )
        super().__init__(streams, name, machine)
        self._snapshot_every = snapshot_every
        self._due_at = snapshot_every
        """The number of executed commands from which on a snapshot is due."""
        self._waiting: deque[tuple[Appended, bytes, asyncio.Future[ResultT | None]]] = deque()
        self._more = asyncio.Event()
        self._writer: StreamWriter
        self._busy = asyncio.Lock()
        """A lock that is held while a snapshot is taken, so that there is only one at a time."""
        self._taking = False
        """Whether an automatic snapshot was begun and has not ended. Its task may not run yet."""

    async def _begin(self, create: bool) -> None:
        self._writer = await self._streams.open_writer(self.name, create=create)
        self._writer._segments.spare_from_retention()
        try:
            await self._restore()
            while not await self._replayed():
                pass
        except BaseException:
            self._writer.abandon()
            raise
        self._tasks.start(self._run())

    async def _replayed(self) -> bool:
        """Apply the commands after the snapshot. False if a newer snapshot was restored instead.

        Raises StreamDamagedError if commands are missing that no snapshot contains.
        """
        # Commands after the snapshot count, whichever leader executed them. Otherwise leaders that
        # end early would never take one.
        self._due_at = self.applied + self._snapshot_every
        try:
            async with aclosing(self._replay(follow=False)) as steps:
                async for _ in steps:
                    pass
            return True
        except StreamGapError as gap:
            # A successor of this leader may have stored a snapshot and truncated the stream since
            # this one restored the snapshot before it.
            await self._restore_newer(gap)
            return False

    async def _keep_log(self) -> None:
        """Store in the settings of the stream that retention must not delete commands.

        They are part of the state until a snapshot contains them, however old they are. The writer
        spares them anyway, but other programs may apply the retention of the stream.
        """
        try:
            settings = await self._streams.stream_settings(self.name)
            if not settings.explicit_truncation:
                await self._streams.configure_stream(self.name, {"explicit_truncation": True})
        except BaseException:
            self._writer.abandon()
            raise

    async def execute(self, command: bytes) -> ResultT:
        """Append a command, wait until it is durable on an ack quorum, and apply it.

        If the call is cancelled, the command may still be applied.

        Args:
            command: The command, which must not be empty.

        Returns:
            The value that the machine's `apply` returned.

        Raises:
            UsageError: The command is empty or not a buffer. Nothing was done.
            StreamFencedError: Another leader took over. The outcome is unknown: the next leader may
                or may not apply the command.
            QuireError: The command could not be appended. See `StreamWriter.append`.
            Exception: The error that the machine's `apply` raised. The command stays in the log.
        """
        command = payload_bytes(command, "a command")
        if command == NOTHING:
            raise UsageError(f"a command of state machine {self.name} must not be empty")
        result: ResultT = await self._submit(command)  # type: ignore[assignment]
        return result

    async def confirm(self) -> None:
        """Prove that this is still the leader. Call it before a read that must not be stale.

        On return, every command that any leader had acknowledged before this call is applied here.
        Cancelling this call is safe.

        Raises:
            QuireError: This is no longer the leader, or that cannot be determined. See `execute`.
        """
        await self._submit(NOTHING)

    async def snapshot(self) -> None:
        """Store the present state, and truncate the commands before it.

        The snapshot is durable on return, with the quorums that the stream has. If the call is
        cancelled, it may or may not have been stored, and nothing is lost.

        Raises:
            StreamFencedError: Another leader took over, or has taken a newer snapshot.
            UsageError: The machine's `snapshot` did not return a buffer.
            QuireError: This leader has ended (see `execute`), or the snapshot could not be stored
                (see `Objects.put`), or it was stored and the commands before it could not be
                truncated.
            Exception: The error that the machine's `snapshot` raised.
        """
        async with self._busy:
            await self.confirm()
            # The machine may return a buffer that further commands change while it is stored.
            state = payload_bytes(self.machine.snapshot(), "a snapshot")
            position, applied = self._position, self.applied
            # Another stream may get the name at any time, so the life is that of the writer.
            claim, settings = self._writer._claim, self._writer.settings
            metadata = {
                POSITION_KEY: str(position),
                APPLIED_KEY: str(applied),
                LIFE_KEY: claim.life_id,
            }
            try:
                # The snapshot takes the place of commands, so it is as durable as they were.
                await self._snapshots.put(
                    self._object, state, metadata=metadata,
                    replace=lambda old: snapshot_info(old).position <= position,
                    ensemble_size=settings.ensemble_size, write_quorum=settings.write_quorum,
                    ack_quorum=settings.ack_quorum, digest=settings.digest,
                )  # fmt: skip
            except ObjectExistsError as error:
                raise nothing_done(
                    StreamFencedError(
                        f"the snapshot of state machine {self.name} was not stored: another leader "
                        "has taken a newer one",
                        remedy="Stop using this leader. Open the state machine again only if this "
                        "process should lead",
                    )
                ) from error
            self._due_at = applied + self._snapshot_every
            stream = self._streams.metadata(self.name)
            await truncate(stream, position, life=claim.life)
            await free(self._streams.client, stream)

    async def close(self) -> None:
        """Wait for the commands in progress, and complete the stream's segment.

        Calling this again is safe. If the call is cancelled, the leader is closed all the same.
        Calls of `execute` that still wait then raise StreamClosedError, and their outcome is
        unknown.

        Raises:
            QuireError: The error that ended the leader, if there was one.
        """
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
        error.outcome_known = False  # commands in progress may or may not be in the log
        try:
            await super()._end(error)
        finally:
            self._fail(error)

    async def _submit(self, command: bytes) -> ResultT | None:
        if self._ended is not None:  # this error names the state machine, and not its stream
            raise self._ended.with_traceback(None)
        # A full stream takes the proof of a leader nevertheless: only a snapshot makes room there.
        within_quota = command != NOTHING
        appended = await self._writer._append((command,), None, None, "", within_quota=within_quota)
        if self._ended is not None:  # commands are no longer applied
            raise self._ended
        result: asyncio.Future[ResultT | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((appended, command, result))
        self._more.set()
        return await asyncio.shield(result)

    async def _run(self) -> None:
        """Apply commands in the order of the log, even if their callers no longer wait."""
        while True:
            while self._waiting:
                appended, command, result = self._waiting[0]
                try:
                    await appended.wait()
                except QuireError as error:
                    self._fail(error)
                    return
                self._waiting.popleft()
                try:
                    self._settle(command, result)
                except ENDS_PROCESS:  # a program may go on nevertheless, and must not wait for us
                    self._ended = StreamClosedError(
                        f"the leader of state machine {self.name} has ended, because its machine "
                        "raised an exception that ends the process",
                        remedy="Open it again",
                    )
                    self._ended.outcome_known = False
                    self._fail(self._ended)
                    raise
                self._position = appended.last.next_slot()
                if self._snapshot_is_due():
                    self._taking = True
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
        except StopIteration as error:  # a future refuses it, as a coroutine does (PEP 479)
            failure = RuntimeError("the machine's apply raised StopIteration")
            failure.__cause__ = error
            result.set_exception(failure)
            result.exception()
        except BaseException as error:
            result.set_exception(error)
            result.exception()
            if isinstance(error, ENDS_PROCESS):
                raise

    def _fail(self, error: QuireError) -> None:
        for _, _, result in self._waiting:
            result.set_exception(error)
            result.exception()
        self._waiting.clear()

    def _snapshot_is_due(self) -> bool:
        due = self._snapshot_every and self.applied >= self._due_at
        return bool(due) and not (self._taking or self._busy.locked())

    async def _snapshot_quietly(self) -> None:
        try:
            await self.snapshot()
        except Exception as error:  # noqa: BLE001 - the machine's `snapshot` may raise anything
            # The log is complete without a snapshot. A later command tries again.
            self._due_at = self.applied + max(1, self._snapshot_every // TRIES_BETWEEN_SNAPSHOTS)
            said = str(error) if isinstance(error, QuireError) else repr(error)
            logger.warning(
                "no snapshot of state machine %s was taken: %s", self.name, said,
                extra={"event": "snapshot_failed", "state_machine": self.name, "error": said},
            )  # fmt: skip
        finally:
            self._taking = False


class Follower(_Replica[ResultT]):
    """A replica that applies the commands of the leaders as they come.

    `Client.state_machine(..., follow=True)` opens it. Use it with `async with`, or call `close`.
    """

    failure: QuireError | None
    """The error that ended the follower, or None."""

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
                self.failure = StreamClosedError(
                    f"the stream of state machine {self.name} was ended, so no further command "
                    "will come"
                )
            except StreamGapError as gap:
                await self._catch_up(gap)
                await self._tell()
            except QuireError as error:
                self.failure = error
            except Exception as error:  # noqa: BLE001 - a defect must not make callers wait forever
                self.failure = self._broken(error)
        await self._tell()

    async def _catch_up(self, gap: StreamGapError) -> None:
        """Restore a newer snapshot, because the next commands were truncated."""
        try:
            await self._restore_newer(gap)
        except QuireError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - the machine's `restore` may raise anything
            self.failure = self._broken(error)

    def _broken(self, error: Exception) -> QuireError:
        """Return the error that ends the follower after one that is not Quire's own."""
        failure = StreamClosedError(
            f"the follower of state machine {self.name} has ended, because a newer snapshot could "
            f"not be restored or a command could not be read: {error!r}",
            remedy="Correct the machine's restore if it raised this error, and follow again with "
            "a new machine",
        )
        failure.__cause__ = error
        return failure

    async def _tell(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def wait_applied(self, count: int) -> None:
        """Wait until a number of commands is applied here. Cancelling this call is safe.

        Args:
            count: The number of commands, such as `Leader.applied`.

        Raises:
            QuireError: The error that ended the follower before that.
        """
        async with self._moved:
            await self._moved.wait_for(lambda: self.applied >= count or self._over is not None)
        if self.applied < count and self._over is not None:
            raise self._over

    @property
    def _over(self) -> QuireError | None:
        """The error that `wait_applied` raises once the follower has ended, or None."""
        return self.failure or self._ended

    async def close(self) -> None:
        """Stop following. Calls of `wait_applied` that still wait raise StreamClosedError.

        Calling this again is safe. If the call is cancelled, the follower is closed all the same.
        """
        await self._close()

    async def _end(self, error: QuireError) -> None:
        try:
            await super()._end(error)
        finally:
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


@opening
async def lead(
    streams: Namespace,
    name: str,
    machine: StateMachine[ResultT],
    *,
    snapshot_every: int = 0,
    create: bool = True,
    keep_log: bool = True,
) -> Leader[ResultT]:
    """Become the leader of a state machine. See `quire.Client.state_machine`.

    The previous leader is fenced, and `machine` is brought to the state that this leader had
    reached. If this call fails or is cancelled, nothing is lost: call it again, with a new machine.

    Args:
        streams: The namespace that holds the machine's stream.
        name: The name of the stream.
        machine: A new machine, without state.
        snapshot_every: The number of commands since the last snapshot after which the next one is
            taken. Commands of former leaders count. 0 means never.
        create: Whether to create the stream if it does not exist.
        keep_log: Whether to store that retention spares the stream. Pass False to look at the
            commands first, and call `Leader._keep_log` then.

    Returns:
        The leader.

    Raises:
        UsageError: An argument is not valid, or `machine` does not have the methods of a state
            machine.
        QuireError: The stream or the snapshot could not be opened or read, for example because the
            metadata store does not answer, or too few bookies do. See `Namespace.open_writer`.
        Exception: The error that the machine's `restore` raised.
    """
    leader = Leader(streams, name, machine, snapshot_every=snapshot_every)
    await leader._begin(create)
    if keep_log:
        await leader._keep_log()
    return leader


@opening
async def follow(
    streams: Namespace, name: str, machine: StateMachine[ResultT]
) -> Follower[ResultT]:
    """Keep a machine up to date with the commands of the leaders. See `quire.Client.state_machine`.

    On return `machine` has the newest snapshot. Later commands are applied in the background. If
    the call is cancelled, call it again with a new machine.

    Args:
        streams: The namespace that holds the machine's stream.
        name: The name of the stream.
        machine: A new machine, without state.

    Returns:
        The follower.

    Raises:
        NoSuchStreamError: The stream does not exist.
        UsageError: `machine` does not have the methods of a state machine.
        QuireError: The snapshot cannot be read, for example because the metadata store or its
            bookies do not answer, or the snapshot belongs to another stream.
        Exception: The error that the machine's `restore` raised.
    """
    follower = Follower(streams, name, machine)
    await streams.metadata(name).require()
    await follower._begin()
    return follower
