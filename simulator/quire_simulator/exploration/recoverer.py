"""The steps of a recovery.

They stand for `LedgerRecovery` in `quire.client.recovery` and for `read_last_confirmed` in
`quire.client.read.last_confirmed`. The decisions are made by `RecoveryVotes`, `recovery_lac`,
`TrustModel.covered`, `AddPipeline`, `core.append.member_changes` and `core.ledger_changes`.

A request and its answer are one step. That loses no behaviour: the recovery may act on an answer at
any later time, and nobody else sees it. A request whose answer does not arrive is a step that is
not taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from quire.core import ledger_changes, recovery
from quire.core.append import member_changes, quorum
from quire_simulator.exploration import bookies
from quire_simulator.exploration.bounds import Bounds
from quire_simulator.exploration.metadata import Metadata
from quire_simulator.exploration.pipelines import Pipelines
from quire_simulator.exploration.values import (
    NOTHING,
    Bookie,
    Label,
    Recovery,
    RecoveryPhase,
)


class RecoverySteps:
    """The steps of recoveries."""

    def __init__(self, bounds: Bounds, pipelines: Pipelines, metadata: Metadata) -> None:
        self._bounds = bounds
        self._rules = bounds.rules
        self._pipelines = pipelines
        self._metadata = metadata
        self._shape = bounds.ensemble, bounds.write_quorum, bounds.ack_quorum

    def first(self) -> Recovery:
        """Return a recovery that has not begun."""
        return Recovery(RecoveryPhase.NEW, self._bounds.recovery_losses)

    # -- steps with the metadata store --------------------------------------------------------

    def with_metadata(self, one: Recovery, stored: int) -> Iterator[tuple[Label, Recovery, int]]:
        """Yield the steps that read or change the metadata."""
        if one.phase is RecoveryPhase.NEW:
            yield self._begin(one, stored)
        elif one.phase is RecoveryPhase.READING and one.end_found:
            written = self._pipelines.confirmed(one.pipeline) == one.upcoming - 1
            if written or not self._rules.waits_for_copies:
                yield self._close(one, stored)

    def _begin(self, one: Recovery, stored: int) -> tuple[Label, Recovery, int]:
        stored, known = self._metadata.update(stored, stored, ledger_changes.marked_in_recovery)
        now = self._metadata[known]
        if now.closed:
            done = one._replace(phase=RecoveryPhase.DONE, told=now.last_entry_id)
            return ("finds it closed", now.last_entry_id), _forget(done), stored
        answers = (None,) * self._bounds.ensemble
        one = one._replace(phase=RecoveryPhase.FENCING, known=known, answers=answers)
        return ("begins",), one, stored

    def _close(self, one: Recovery, stored: int) -> tuple[Label, Recovery, int]:
        last = one.upcoming - 1
        stored, known = self._metadata.update(
            stored,
            one.known,
            lambda now: ledger_changes.closed_by_recovery(now, one.segments, last, last + 1),
        )
        now = self._metadata[known]
        if not now.closed:
            return ("close fails", last), self._failed(one), stored
        done = one._replace(phase=RecoveryPhase.DONE, told=now.last_entry_id)
        return ("closes", last, now.last_entry_id), _forget(done), stored

    def _failed(self, one: Recovery) -> Recovery:
        return _forget(one._replace(phase=RecoveryPhase.FAILED))

    # -- steps of its own ---------------------------------------------------------------------

    def alone(self, one: Recovery, restarted: str) -> Iterator[tuple[Label, Recovery]]:
        """Yield the steps that concern nobody else. `restarted` is a bookie that was restarted."""
        if one.phase is RecoveryPhase.FENCING:
            if self._covered(one):
                yield self._begin_reading(one)
        elif one.phase is RecoveryPhase.READING:
            yield from self._session(one, restarted)

    def _covered(self, one: Recovery) -> bool:
        known = [index for index, lac in enumerate(one.answers) if lac is not None]
        return recovery.HONEST_BOOKIES.covered(known, *self._shape)

    def _begin_reading(self, one: Recovery) -> tuple[Label, Recovery]:
        snapshot = self._metadata[one.known]
        lacs = [lac for lac in one.answers if lac is not None]
        believed = recovery.HONEST_BOOKIES.believed_lac(lacs)
        lac = recovery.recovery_lac({0: believed}, snapshot.last_segment.first_entry_id)
        reading = one._replace(
            phase=RecoveryPhase.READING,
            answers=(),
            lac=lac,
            upcoming=lac + 1,
            pipeline=self._pipelines.new(lac),
            ensemble=snapshot.last_segment.ensemble,
            queues=((),) * len(snapshot.last_segment.ensemble),
        )
        return ("reads on", lac), reading

    def _session(self, one: Recovery, restarted: str) -> Iterator[tuple[Label, Recovery]]:
        """Yield what may happen to the members that entries are written back to."""
        if not self._owes(one):
            return
        for index, bookie in enumerate(one.ensemble):
            if index in one.absent:
                back = self._begin_again(one, (index,))
                absent = tuple(other for other in one.absent if other != index)
                yield ("rejoins", bookie), back._replace(absent=absent)
                continue
            if one.losses:
                less = one._replace(losses=one.losses - 1)
            elif bookie == restarted:
                less = one
            else:
                continue
            for spare in (*self._spares(one), ""):
                replacements = {index: spare} if spare else {}
                yield ("loses", bookie, spare), self._lose(less, index, replacements)

    def _owes(self, one: Recovery) -> bool:
        pushed = self._pipelines.pushed(one.pipeline)
        confirmed = self._pipelines.confirmed(one.pipeline)
        return pushed > one.lac and not (one.end_found and confirmed == pushed)

    def _spares(self, one: Recovery) -> list[str]:
        return [name for name in self._bounds.names if name not in one.ensemble]

    def _lose(self, one: Recovery, index: int, replacements: dict[int, str]) -> Recovery:
        """Replace a member, or continue without it (`EnsembleChanges._replace`)."""
        failed = {index: one.ensemble[index]}
        ensemble, segments = one.ensemble, one.segments
        if replacements:
            first = self._pipelines.confirmed(one.pipeline) + 1
            changed = ledger_changes.private_change(
                self._metadata[one.known], segments, replacements, first
            )
            segments, ensemble = tuple(changed), changed[-1][1]
        after = member_changes.members_after_change(one.ensemble, ensemble, failed, one.absent)
        absent = after.absent | after.left_out
        pipeline = self._pipelines.park(one.pipeline, sorted(after.left_out))
        queues = tuple(() if at in after.left_out else queue for at, queue in enumerate(one.queues))
        one = one._replace(
            ensemble=ensemble,
            segments=segments,
            absent=tuple(sorted(absent)),
            pipeline=pipeline,
            queues=queues,
        )
        return self._begin_again(one, sorted(after.restarted))

    def _begin_again(self, one: Recovery, indexes: tuple[int, ...] | list[int]) -> Recovery:
        pipeline, sent = self._pipelines.restart(one.pipeline, indexes)
        # The pipeline is released again after the change, and confirms what is possible.
        pipeline = self._pipelines.frozen(pipeline, frozen=False)
        queues = tuple(sent.get(index, queue) for index, queue in enumerate(one.queues))
        return one._replace(pipeline=pipeline, queues=queues)

    # -- steps with a bookie ------------------------------------------------------------------

    def targets(self, one: Recovery) -> Iterator[tuple[str, int, str]]:
        """Yield the requests that may arrive now: their kind, the index, and the bookie."""
        if one.phase is RecoveryPhase.FENCING:
            if self._covered(one):
                return  # it reads on at once
            for index, bookie in enumerate(self._metadata[one.known].last_segment.ensemble):
                if one.answers[index] is None:
                    yield "fence", index, bookie
        elif one.phase is RecoveryPhase.READING:
            if not one.end_found:
                snapshot = self._metadata[one.known].last_segment.ensemble
                asked = {*one.positive, *one.negative, *one.neither}
                for index in quorum.write_set(one.upcoming, *self._shape[:2]):
                    if index not in asked:
                        yield "read", index, snapshot[index]
            for index, queue in enumerate(one.queues):
                if queue:
                    yield "write back", index, one.ensemble[index]

    def arrive(
        self, one: Recovery, kind: str, index: int, name: str, bookie: Bookie
    ) -> tuple[Label, Recovery, Bookie]:
        """Let a request arrive at a bookie, and its answer at the recovery."""
        if kind == "fence":
            return self._fence(one, index, name, bookie)
        if kind == "read":
            return self._read(one, index, name, bookie)
        add = one.queues[index][0]
        bookie = bookies.recovery_add(bookie, add)
        queues = (*one.queues[:index], one.queues[index][1:], *one.queues[index + 1 :])
        pipeline = self._pipelines.acked(one.pipeline, index, add[0])
        return ("write back", name, add[0]), one._replace(queues=queues, pipeline=pipeline), bookie

    def _fence(
        self, one: Recovery, index: int, name: str, bookie: Bookie
    ) -> tuple[Label, Recovery, Bookie]:
        if self._rules.lac_read_fences:
            bookie = bookies.fence(bookie, self._rules)
        lac = bookies.last_entry(bookie, self._rules)
        answers = (*one.answers[:index], lac, *one.answers[index + 1 :])
        label = ("fence", name, NOTHING if lac is None else lac)
        return label, one._replace(answers=answers), bookie

    def _read(
        self, one: Recovery, index: int, name: str, bookie: Bookie
    ) -> tuple[Label, Recovery, Bookie]:
        if self._rules.reads_fence:
            bookie = bookies.fence(bookie, self._rules)
        answer = bookies.has(bookie, one.upcoming, self._rules)
        told = {True: "has", False: "denies", None: "does not know"}[answer]
        if answer is None:
            one = one._replace(neither=tuple(sorted({*one.neither, index})))
        elif answer:
            one = one._replace(positive=tuple(sorted({*one.positive, index})))
        else:
            one = one._replace(negative=tuple(sorted({*one.negative, index})))
        label: Label = ("read", name, told, one.upcoming)
        return label, self._decide(one), bookie

    def _decide(self, one: Recovery) -> Recovery:
        """Conclude what the votes prove about the entry that is asked for."""
        entry = one.upcoming
        votes = recovery.RecoveryVotes(entry, *self._shape)
        for index in one.positive:
            votes.positive(entry, index)
        for index in one.negative:
            votes.negative(entry, index)
        for index in one.neither:
            votes.neither(entry, index)
        verdict = votes.verdict(entry)
        if verdict is recovery.EntryVerdict.EXISTS:
            return self._found(one)
        if verdict is recovery.EntryVerdict.ABSENT:
            return one._replace(end_found=True, positive=(), negative=(), neither=())
        if verdict is recovery.EntryVerdict.UNDECIDABLE:
            return self._failed(one)
        return one

    def _found(self, one: Recovery) -> Recovery:
        """Write an entry back that exists, and ask for the next one."""
        lac = one.lac if self._rules.written_back_lac_is_old else one.upcoming - 1
        pipeline, add = self._pipelines.push(one.pipeline, lac)
        queues = tuple(
            (*queue, add)
            if index not in one.absent and self._pipelines.stores(pipeline, index, add[0])
            else queue
            for index, queue in enumerate(one.queues)
        )
        return one._replace(
            upcoming=one.upcoming + 1, positive=(), negative=(), neither=(), pipeline=pipeline,
            queues=queues,
        )  # fmt: skip


def _forget(one: Recovery) -> Recovery:
    """Return a recovery that has ended, without what no longer matters."""
    return Recovery(one.phase, 0, told=one.told)
