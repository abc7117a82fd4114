"""The steps of a writer.

They stand for `AddSession` and `Member` in `quire.client.write.add_session`, for `EnsembleChanges`
in `quire.client.write.ensemble_changes`, and for `WriteHandle` in `quire.client.write.writer`. The
decisions are made by `AddPipeline`, `core.append.member_changes` and `core.ledger_changes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, permutations

from quire.codec.metadata.ledger_metadata import LedgerState
from quire.core import ledger_changes
from quire.core.append import member_changes
from quire_simulator.exploration import bookies
from quire_simulator.exploration.bounds import Bounds
from quire_simulator.exploration.metadata import Metadata
from quire_simulator.exploration.pipelines import Pipelines
from quire_simulator.exploration.values import (
    NOTHING,
    Bookie,
    Label,
    Link,
    Writer,
    WriterPhase,
)


class ZombieError(Exception):
    """Raised when a writer that has ended would confirm an entry."""


class WriterSteps:
    """The steps of the writer."""

    def __init__(self, bounds: Bounds, pipelines: Pipelines, metadata: Metadata) -> None:
        self._bounds = bounds
        self._rules = bounds.rules
        self._pipelines = pipelines
        self._metadata = metadata

    def first(self, known: int) -> Writer:
        """Return a writer that has just created its ledger."""
        ensemble = self._bounds.names[: self._bounds.ensemble]
        return Writer(
            WriterPhase.OPEN,
            self._pipelines.new(),
            ensemble,
            known,
            tuple(Link() for _ in ensemble),
            losses=self._bounds.losses,
        )

    def acknowledged(self, writer: Writer) -> int:
        """Return the last acknowledged entry."""
        return self._pipelines.confirmed(writer.pipeline)

    # -- steps of its own ---------------------------------------------------------------------

    def alone(self, writer: Writer) -> Iterator[tuple[Label, Writer]]:
        """Yield the steps that concern nobody else."""
        if writer.phase not in (WriterPhase.OPEN, WriterPhase.CHANGING):
            return
        if writer.phase is WriterPhase.CHANGING and not writer.replacements:
            yield from self._decide(writer)
        if self._pipelines.pushed(writer.pipeline) + 1 < self._bounds.entries:
            yield self._push(writer)
        for index, link in enumerate(writer.links):
            bookie = writer.ensemble[index]
            if link is None:
                if index in writer.absent and writer.phase is WriterPhase.OPEN:
                    back = self._begin_again(writer, (index,))
                    absent = tuple(one for one in writer.absent if one != index)
                    yield ("rejoin", bookie), back._replace(absent=absent)
                    if self._spares(writer.ensemble):
                        yield ("spare found", bookie), self._fail(writer, index)
                continue
            if link.acks:
                acked = self._pipelines.acked(writer.pipeline, index, link.acks[0])
                heard = self._with_link(writer, index, link._replace(acks=link.acks[1:]))
                yield ("ack", bookie, link.acks[0]), heard._replace(pipeline=acked)
            elif link.refusal == bookies.FENCED and self._rules.stops_when_fenced:
                yield ("fenced", bookie), self.end(writer)
            elif link.refusal:
                yield ("refused", bookie, link.refusal), self._fail(writer, index)
            if link.broken:
                yield ("lost", bookie), self._fail(writer, index)
            elif writer.losses and self._bounds.late_answers:
                less = writer._replace(losses=writer.losses - 1)
                yield ("lost", bookie), self._fail(less, index)

    def _push(self, writer: Writer) -> tuple[Label, Writer]:
        lac = self._pipelines.confirmed(writer.pipeline)
        pipeline, add = self._pipelines.push(writer.pipeline, lac)
        links = tuple(
            link._replace(queue=(*link.queue, add))
            if link is not None and self._pipelines.stores(pipeline, index, add[0])
            else link
            for index, link in enumerate(writer.links)
        )
        return ("push", *add), writer._replace(pipeline=pipeline, links=links)

    def _with_link(self, writer: Writer, index: int, link: Link | None) -> Writer:
        links = writer.links
        return writer._replace(links=(*links[:index], link, *links[index + 1 :]))

    def _leave(self, writer: Writer, indexes: Iterable[int]) -> Writer:
        """Give up the connections to these members (`Member.leave`)."""
        strays = set(writer.strays)
        for index in indexes:
            link = writer.links[index]
            if link is None:
                continue
            bookie = writer.ensemble[index]
            if self._bounds.late_answers and not link.broken and not link.refusal:
                strays.update((bookie, entry, lac, index) for entry, lac in link.queue)
            if not self._rules.late_answers_ignored:
                strays.update((bookie, entry, NOTHING, index) for entry in link.acks)
            writer = self._with_link(writer, index, None)
        return writer._replace(strays=tuple(sorted(strays)))

    def _fail(self, writer: Writer, index: int) -> Writer:
        """Begin an ensemble change, or extend the one in progress (`EnsembleChanges.replace`)."""
        writer = self._leave(writer, (index,))
        writer = writer._replace(absent=tuple(one for one in writer.absent if one != index))
        if writer.phase is WriterPhase.CHANGING:
            return writer._replace(failed=tuple(sorted({*writer.failed, index})))
        return writer._replace(
            phase=WriterPhase.CHANGING,
            changing=(index,),
            pipeline=self._pipelines.frozen(writer.pipeline, frozen=True),
        )

    def _begin_again(self, writer: Writer, indexes: Iterable[int], *, same: bool = False) -> Writer:
        """Start again with the bookies in these places (`AddSession.begin_again`)."""
        indexes = tuple(indexes)
        writer = self._leave(writer, indexes)
        pipeline, sent = self._pipelines.restart(writer.pipeline, indexes, same=same)
        links = tuple(
            Link(sent[index]) if index in sent else link for index, link in enumerate(writer.links)
        )
        return writer._replace(pipeline=pipeline, links=links)

    def end(self, writer: Writer) -> Writer:
        """End the writer for good (`AddSession.fail`)."""
        pipeline = frozen = self._pipelines.frozen(writer.pipeline, frozen=True)
        for index, link in enumerate(writer.links):
            if link is not None:
                for entry in link.acks:
                    pipeline = self._pipelines.acked(pipeline, index, entry)
        if self._pipelines.confirms(pipeline):
            raise ZombieError
        writer = self._leave(writer, range(len(writer.links)))
        # What it knew has no influence any more.
        return Writer(
            WriterPhase.ENDED, self._pipelines.ended(frozen), (), 0, (), strays=writer.strays
        )

    def _spares(self, ensemble: tuple[str, ...]) -> list[str]:
        return [one for one in self._bounds.names if one not in ensemble]

    # -- ensemble changes ---------------------------------------------------------------------

    def _decide(self, writer: Writer) -> Iterator[tuple[Label, Writer]]:
        """Yield what may be decided about failed members (`EnsembleChanges._run`)."""
        for count in range(len(writer.changing) + 1):
            for returned in combinations(writer.changing, count):
                rest = tuple(one for one in writer.changing if one not in returned)
                back = self._begin_again(writer, returned, same=True) if returned else writer
                names = tuple(writer.ensemble[index] for index in returned)
                if not rest:
                    yield ("returned", *names), self._next_change(back)
                    continue
                back = back._replace(changing=rest)
                for replacements in self._replacements(writer, rest):
                    new = tuple(replacements.values())
                    if not new:
                        yield ("change", *names, "->"), self._members(back, back.ensemble)
                        continue
                    first = self._pipelines.confirmed(back.pipeline) + 1
                    if not self._rules.changes_begin_after_the_lac:
                        first = self._pipelines.pushed(back.pipeline) + 1
                    chosen = tuple(replacements.items())
                    decided = back._replace(first=first, replacements=chosen)
                    yield ("change", *names, "->", *new), decided

    def _replacements(self, writer: Writer, rest: tuple[int, ...]) -> Iterator[dict[int, str]]:
        """Yield the choices that placement may make: as many bookies as it finds."""
        spares = self._spares(writer.ensemble)
        for count in range(min(len(rest), len(spares)) + 1):
            for indexes in combinations(rest, count):
                for chosen in permutations(spares, count):
                    yield dict(zip(indexes, chosen, strict=True))

    def _members(self, writer: Writer, ensemble: tuple[str, ...]) -> Writer:
        """Continue with the ensemble that is in force (the end of `EnsembleChanges._replace`)."""
        failed = {index: writer.ensemble[index] for index in writer.changing}
        after = member_changes.members_after_change(
            writer.ensemble, ensemble, failed, writer.absent
        )
        writer = writer._replace(
            ensemble=ensemble, absent=tuple(sorted(after.absent)), first=NOTHING, replacements=()
        )
        if after.left_out:  # EnsembleChanges._go_on_without
            writer = writer._replace(
                pipeline=self._pipelines.park(writer.pipeline, sorted(after.left_out)),
                absent=tuple(sorted(after.absent | after.left_out)),
            )
        return self._next_change(self._begin_again(writer, sorted(after.restarted)))

    def _next_change(self, writer: Writer) -> Writer:
        """Continue with the members that failed meanwhile, or release the pipeline."""
        if writer.failed:
            return writer._replace(changing=writer.failed, failed=())
        pipeline = self._pipelines.frozen(writer.pipeline, frozen=False)
        return writer._replace(phase=WriterPhase.OPEN, changing=(), pipeline=pipeline)

    # -- steps with the metadata store --------------------------------------------------------

    def with_metadata(self, writer: Writer, stored: int) -> Iterator[tuple[Label, Writer, int]]:
        """Yield the steps that read or change the metadata."""
        if writer.phase is WriterPhase.CHANGING and writer.replacements:
            yield self._record_change(writer, stored)
        elif writer.phase is WriterPhase.OPEN:
            last = self._pipelines.confirmed(writer.pipeline)
            if last == self._pipelines.pushed(writer.pipeline):
                yield self._close(writer, stored, last)

    def _record_change(self, writer: Writer, stored: int) -> tuple[Label, Writer, int]:
        """Record the decided change (`WriteHandle._change_ensemble`)."""
        replacements = dict(writer.replacements)
        gone = {index: writer.ensemble[index] for index in replacements}
        stored, known = self._metadata.update(
            stored,
            writer.known,
            lambda now: ledger_changes.changed_ensemble(now, gone, replacements, writer.first),
        )
        new = tuple(replacements.values())
        writer = writer._replace(known=known)
        if self._metadata.state(known) is not LedgerState.OPEN:  # WriteHandle._over
            return ("too late", *new), self.end(writer), stored
        ensemble = self._metadata[known].last_segment.ensemble
        return ("recorded", writer.first, *new), self._members(writer, ensemble), stored

    def _close(self, writer: Writer, stored: int, last: int) -> tuple[Label, Writer, int]:
        stored, known = self._metadata.update(
            stored,
            writer.known,
            lambda now: ledger_changes.closed_by_writer(now, last, last + 1),
        )
        writer = self.end(writer)
        if self._metadata[known].last_entry_id == last:
            writer = writer._replace(phase=WriterPhase.CLOSED)
        return ("writer closes", last), writer, stored

    # -- steps with a bookie ------------------------------------------------------------------

    def arrive(self, writer: Writer, index: int, bookie: Bookie) -> tuple[Label, Writer, Bookie]:
        """Let the next add on a connection arrive."""
        link = writer.links[index]
        assert link is not None
        add = link.queue[0]
        bookie, refusal = bookies.add(bookie, self._rules, add)
        label = ("arrive", writer.ensemble[index], add[0], refusal)
        if not self._bounds.late_answers:
            return label, self._answered(writer, index, add[0], refusal), bookie
        if refusal:  # all later ones are refused as well
            link = link._replace(queue=(), refusal=refusal)
        else:
            link = link._replace(queue=link.queue[1:], acks=(*link.acks, add[0]))
        return label, self._with_link(writer, index, link), bookie

    def _answered(self, writer: Writer, index: int, entry: int, refusal: str) -> Writer:
        """Return the writer after the answer to the first add on a connection."""
        if refusal == bookies.FENCED and self._rules.stops_when_fenced:
            return self.end(writer)
        if refusal:
            return self._fail(writer, index)
        link = writer.links[index]
        assert link is not None
        writer = self._with_link(writer, index, link._replace(queue=link.queue[1:]))
        return writer._replace(pipeline=self._pipelines.acked(writer.pipeline, index, entry))

    def lose(
        self, writer: Writer, index: int, unheard: int, bookie: Bookie
    ) -> tuple[Label, Writer, Bookie]:
        """Lose a connection whose first `unheard` adds arrive and are not answered any more."""
        link = writer.links[index]
        assert link is not None
        label: Label = ("lost", writer.ensemble[index])
        for add in link.queue[:unheard]:
            bookie, refusal = bookies.add(bookie, self._rules, add)
            if not refusal:
                label = (*label, add[0])
        return label, self._fail(writer._replace(losses=writer.losses - 1), index), bookie

    def stray(self, writer: Writer, at: int, bookie: Bookie) -> tuple[Label, Writer, Bookie]:
        """Let an add, or an answer, of a member arrive that the writer has given up."""
        name, entry, lac, index = writer.strays[at]
        refusal = ""
        if lac != NOTHING:
            bookie, refusal = bookies.add(bookie, self._rules, (entry, lac))
        left = writer._replace(strays=(*writer.strays[:at], *writer.strays[at + 1 :]))
        ended = writer.phase in (WriterPhase.ENDED, WriterPhase.CLOSED)
        if not self._rules.late_answers_ignored and not refusal and not ended:
            left = left._replace(pipeline=self._pipelines.acked(left.pipeline, index, entry))
        return ("stray", name, entry, refusal), left, bookie

    def restarted(self, writer: Writer, name: str) -> Writer:
        """Return the writer after the restart of a bookie: what was on its way there is lost."""
        links = tuple(
            link._replace(queue=(), broken=True)
            if link is not None and writer.ensemble[index] == name
            else link
            for index, link in enumerate(writer.links)
        )
        strays = tuple(one for one in writer.strays if one[0] != name or one[2] == NOTHING)
        return writer._replace(links=links, strays=strays)
