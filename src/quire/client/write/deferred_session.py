"""Adds to a deferred-sync ledger, which are acknowledged before a force makes them durable.

Adds use protocol v3. A force asks every connected member, on the connection that carried its adds.
A bookie that was restarted, and lost what it had accepted, lost this connection as well, so it
cannot answer for those entries. A member that fails is replaced as in any ledger, and is sent all
entries that are not durable. Apache's client keeps no payloads after an acknowledgement, and has to
give up the ledger in this case.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Unpack

from quire._runtime.tasks import TaskGroup
from quire.client.write.add_session import AddSession, HowToAdd, Member
from quire.client.write.ensemble_changes import fail_with_defect
from quire.codec.wire.v3_adds import DeferredAddEncoder, max_deferred_payload_bytes
from quire.core.append.deferred_pipeline import DeferredPipeline
from quire.errors import BookieTimeoutError, QuireError
from quire.net.control import ControlChannel


class DeferredSession(AddSession):
    """A session that adds to a deferred-sync ledger. Only `force` advances its `last_confirmed`."""

    __slots__ = ("_forces", "_forcing", "_moved")

    pipeline: DeferredPipeline
    always_hears = True  # a force may wait for any acknowledgement

    def __init__(self, **how: Unpack[HowToAdd]) -> None:
        super().__init__(**how)
        codec, ensemble = how["codec"], how["ensemble"]
        self.pipeline = DeferredPipeline(len(ensemble), how["write_quorum"], how["ack_quorum"])
        self._encoder = DeferredAddEncoder(codec, how["key"])
        self.max_payload_bytes = max_deferred_payload_bytes(codec.digest)
        self._forces: deque[tuple[int, asyncio.Future[int]]] = deque()
        """The entry ids that callers want to be durable, ascending, with their futures."""
        self._forcing = False
        self._moved: asyncio.Future[None] | None = None

    async def connect(self, bookie_id: str) -> ControlChannel:
        return await self.pool.control(bookie_id, adds_of=self.ledger_id)

    def connected(self, bookie_id: str) -> ControlChannel | None:
        return self.pool.control_now(bookie_id, self.ledger_id)

    @property
    def owes(self) -> bool:
        return bool(self._forces) or super().owes

    # -- the bound ----------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return self._too_much_unforced or super().full

    @property
    def _too_much_unforced(self) -> bool:
        return self.pipeline.unconfirmed_bytes >= self.config.max_unforced_bytes

    async def room(self) -> None:
        """Wait until appends may continue, and force first if too many bytes are not durable."""
        if self._too_much_unforced:
            self._force_soon()
        await super().room()

    # -- forcing ------------------------------------------------------------------------------

    async def force(self) -> int:
        """Make the entries that are accepted now durable, and return the last confirmed entry.

        Raises the error that ended the session. Cancel-safe: the force continues.
        """
        return await self._force_soon()

    def _force_soon(self) -> asyncio.Future[int]:
        pipeline = self.pipeline
        future: asyncio.Future[int] = self._loop.create_future()
        if self.failure is not None:
            future.set_exception(self.failure)
            future.exception()
        elif pipeline.accepted <= pipeline.last_confirmed:
            future.set_result(pipeline.last_confirmed)
        else:
            self._forces.append((pipeline.accepted, future))
            if not self._forcing:
                self._forcing = True
                self.tasks.start(self._force_all())
        return future

    async def _force_all(self) -> None:
        try:
            while self.failure is None:
                if self._room is not None and self._too_much_unforced and not self._forces:
                    self._force_soon()  # force what was accepted while the last one ran
                if not self._forces:
                    break
                await self._force_once(self._forces[0][0])
        except Exception as error:  # noqa: BLE001 - a defect must not make forces wait forever
            if isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            fail_with_defect(self, error)
        finally:
            self._forcing = False

    async def _force_once(self, target: int) -> None:
        """Ask the members once to force, which advances `last_confirmed` to `target` or further.

        If a member fails or the ensemble changes meanwhile, `last_confirmed` stays, and the caller
        has to repeat the call.
        """
        pipeline = self.pipeline
        while (members := self._forceable(target)) is None:
            if self._moved is None:
                self._moved = self._loop.create_future()
            await self._moved
            if self.failure is not None:
                return
        through, generation = pipeline.stored_through(), pipeline.generation
        async with TaskGroup() as group:
            forced = [group.create_task(self._force_member(*member)) for member in members]
        if not all(task.result() for task in forced) or self.failure is not None:
            return
        if pipeline.forced(through, generation):
            self._tell_forced()

    def _forceable(self, target: int) -> list[tuple[Member, ControlChannel]] | None:
        """Return the members to force, with their connections, or None while that is not possible.

        A force is not possible before an ack quorum has everything up to `target`, nor while the
        ensemble is being changed, nor while a member that stores entries to be forced is being
        connected.
        """
        pipeline = self.pipeline
        if pipeline.frozen or pipeline.stored_through() < target:
            return None
        members: list[tuple[Member, ControlChannel]] = []
        for index in pipeline.present():
            member = self._members[index]
            if isinstance(member.channel, ControlChannel):
                members.append((member, member.channel))
            elif pipeline.has_unforced(index):
                return None  # it is being connected: it will answer or fail
        return members

    async def _force_member(self, member: Member, channel: ControlChannel) -> bool:
        error: QuireError
        limit = self.config.add_timeout_s
        try:
            async with asyncio.timeout(limit):
                await channel.force(self.ledger_id)
            return True
        except QuireError as failed:
            error = failed
        except TimeoutError:
            error = BookieTimeoutError(
                f"bookie {member.bookie_id} did not answer a force of ledger {self.ledger_id} "
                f"within {limit:g} s"
            )
        self.on_failure(member, error)
        return False

    def _tell_forced(self) -> None:
        confirmed = self.pipeline.last_confirmed
        while self._forces and self._forces[0][0] <= confirmed:
            _, future = self._forces.popleft()
            if not future.done():
                future.set_result(confirmed)
        self.after_acks()

    # -- events that let a force continue -----------------------------------------------------

    def after_acks(self) -> None:
        super().after_acks()
        if self._moved is not None:
            self._wake()
        if self._room is not None and not self._forcing and self._too_much_unforced:
            self._force_soon()

    def fail(self, error: QuireError) -> None:
        if self.failure is not None:
            return
        super().fail(error)
        forces, self._forces = self._forces, deque()
        for _, future in forces:
            if not future.done():
                future.set_exception(error)
                future.exception()  # a cancelled caller never retrieves it
        self._wake()

    def _wake(self) -> None:
        moved, self._moved = self._moved, None
        if moved is not None and not moved.done():
            moved.set_result(None)
