"""The reduction by symmetry: states that differ only in the names of bookies are one state.

It applies if every bookie of an ensemble stores every entry. The place of a bookie in an ensemble
has no influence then, so `Symmetry` sorts the bookies by all that a state says about each of them,
gives them new names in that order, and sorts every ensemble by name. If a state says the same about
two bookies, either order should give the same state. If it does not, the reduction is smaller, but
no state is lost: the steps of a renamed state are those of the original state with other names.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from quire_simulator.exploration.bounds import Bounds
from quire_simulator.exploration.metadata import Metadata
from quire_simulator.exploration.pipelines import Pipelines
from quire_simulator.exploration.values import Copy, Recovery, RecoveryPhase, Table, Writer

Names = Mapping[str, str]
"""The new name of each bookie."""
Order = tuple[int, ...]
"""The old index of each new one."""


class Renaming:
    """The values of a state with other names of bookies."""

    def __init__(self, bounds: Bounds, pipelines: Pipelines, metadata: Metadata) -> None:
        self._names = bounds.names
        self._pipelines = pipelines
        self._metadata = metadata

    # -- what a value says about each bookie --------------------------------------------------

    def of_metadata(self, number: int, name: str) -> Hashable:
        """Return in which segments a bookie is."""
        return tuple(name in one.ensemble for one in self._metadata[number].segments)

    def of_copy(self, copy: Copy, name: str) -> Hashable:
        """Return whether the copy is of this bookie."""
        return copy.bookie == name

    def of_writer(self, writer: Writer, name: str) -> Hashable:
        """Return what a writer knows about a bookie."""
        strays = tuple(sorted(one[1:3] for one in writer.strays if one[0] == name))
        if not writer.ensemble:
            return strays  # it has ended
        known = self.of_metadata(writer.known, name)
        if name not in writer.ensemble:
            return strays, known, name in dict(writer.replacements).values()
        index = writer.ensemble.index(name)
        flags = index in writer.changing, index in writer.failed, index in writer.absent
        chosen = dict(writer.replacements).get(index)
        part = self._pipelines.of_member(writer.pipeline, index), chosen is not None
        link = writer.links[index]
        return strays, known, flags, link is not None and tuple(link), part

    def of_recovery(self, one: Recovery, name: str) -> Hashable:
        """Return what a recovery knows about a bookie."""
        if one.phase not in (RecoveryPhase.FENCING, RecoveryPhase.READING):
            return ()
        snapshot = self._metadata[one.known].last_segment.ensemble
        found: list[Hashable] = [self.of_metadata(one.known, name)]
        if name in snapshot:
            at = snapshot.index(name)
            votes = at in one.positive, at in one.negative, at in one.neither
            lac = one.answers[at] if one.answers else None
            found += [votes, (lac is None, lac or 0)]
        if name in one.ensemble:
            at = one.ensemble.index(name)
            found += [one.queues[at], at in one.absent]
            found.append(self._pipelines.of_member(one.pipeline, at))
        found.append(tuple(name in ensemble for _, ensemble in one.segments))
        return tuple(found)

    # -- the same value with other names ------------------------------------------------------

    def metadata(self, number: int, names: Names) -> int:
        """Return the metadata with other names."""
        return self._metadata.renamed(number, names)

    def copy(self, copy: Copy, names: Names) -> Copy:
        """Return the copy with other names."""
        return copy._replace(bookie=names[copy.bookie]) if copy.bookie else copy

    def writer(self, writer: Writer, names: Names) -> Writer:
        """Return the writer with other names."""
        ensemble, order = _renamed(writer.ensemble, names)
        ended = writer.pipeline
        places = {old: new for new, old in enumerate(order)}
        strays = sorted(
            (names[bookie], entry, lac, places.get(index, index))
            for bookie, entry, lac, index in writer.strays
        )
        return writer._replace(
            ensemble=ensemble,
            known=self.metadata(writer.known, names) if ensemble else writer.known,
            pipeline=self._pipelines.permuted(writer.pipeline, order) if ensemble else ended,
            links=tuple(writer.links[old] for old in order),
            changing=_moved(writer.changing, places),
            failed=_moved(writer.failed, places),
            absent=_moved(writer.absent, places),
            replacements=tuple(
                sorted((places[index], names[new]) for index, new in writer.replacements)
            ),
            strays=tuple(strays),
        )

    def recovery(self, one: Recovery, names: Names) -> Recovery:
        """Return the recovery with other names."""
        if one.phase not in (RecoveryPhase.FENCING, RecoveryPhase.READING):
            return one
        snapshot = self._metadata[one.known].last_segment.ensemble
        _, order = _renamed(snapshot, names)
        places = {old: new for new, old in enumerate(order)}
        one = one._replace(
            known=self.metadata(one.known, names),
            answers=tuple(one.answers[old] for old in order) if one.answers else (),
            positive=_moved(one.positive, places),
            negative=_moved(one.negative, places),
            neither=_moved(one.neither, places),
        )
        if one.phase is RecoveryPhase.FENCING:
            return one
        ensemble, order = _renamed(one.ensemble, names)
        places = {old: new for new, old in enumerate(order)}
        return one._replace(
            ensemble=ensemble,
            segments=tuple((first, _renamed(who, names)[0]) for first, who in one.segments),
            pipeline=self._pipelines.permuted(one.pipeline, order),
            queues=tuple(one.queues[old] for old in order),
            absent=_moved(one.absent, places),
        )


def _renamed(ensemble: Sequence[str], names: Names) -> tuple[tuple[str, ...], Order]:
    """Return an ensemble with other names, sorted, and the old index of each new one."""
    new = [names[one] for one in ensemble]
    order = tuple(sorted(range(len(new)), key=new.__getitem__))
    return tuple(new[index] for index in order), order


def _moved(indexes: Sequence[int], places: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(sorted(places[index] for index in indexes))


class Symmetry:
    """The renaming of whole states. A state is a tuple of numbers, as in `model`.

    Its first three numbers (metadata, writer, copy) and its last ones (recoveries) are looked up
    together, because this is the innermost part of the search.
    """

    def __init__(
        self,
        bounds: Bounds,
        renaming: Renaming,
        tables: tuple[Table[Writer], Table[Copy], Table[Recovery]],
    ) -> None:
        self._names = bounds.names
        self._end = 3 + bounds.bookies
        self._writers, self._copies, self._recoveries = tables
        self._renaming = renaming
        self._parts: Table[Hashable] = Table()
        self._heads: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._tails: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._renamed_heads: dict[tuple[tuple[int, ...], Order], tuple[int, ...]] = {}
        self._renamed_tails: dict[tuple[tuple[int, ...], Order], tuple[int, ...]] = {}

    def canonical(self, state: tuple[int, ...]) -> tuple[int, ...]:
        """Return the state that stands for all states that differ from this one only in names."""
        end = self._end
        head, bookies, tail = state[:3], state[3:end], state[end:]
        by_head = self._heads.get(head) or self._told_by_head(head)
        by_tail = self._tails.get(tail) or self._told_by_tail(tail)
        rows = sorted(zip(bookies, by_head, by_tail, range(len(bookies))))
        order = tuple([row[3] for row in rows])
        new_head = self._renamed_heads.get((head, order))
        if new_head is None:
            new_head = self._rename_head(head, order)
        new_tail = self._renamed_tails.get((tail, order))
        if new_tail is None:
            new_tail = self._rename_tail(tail, order)
        return (*new_head, *[row[0] for row in rows], *new_tail)

    def _told_by_head(self, head: tuple[int, ...]) -> tuple[int, ...]:
        meta, writer, copy = head
        writer_value, copy_value = self._writers.values[writer], self._copies.values[copy]
        renaming = self._renaming
        found = self._heads[head] = tuple(
            self._parts.number(
                (
                    renaming.of_metadata(meta, name),
                    renaming.of_writer(writer_value, name),
                    renaming.of_copy(copy_value, name),
                )
            )
            for name in self._names
        )
        return found

    def _told_by_tail(self, tail: tuple[int, ...]) -> tuple[int, ...]:
        values = [self._recoveries.values[one] for one in tail]
        found = self._tails[tail] = tuple(
            self._parts.number(tuple(self._renaming.of_recovery(one, name) for one in values))
            for name in self._names
        )
        return found

    def _new_names(self, order: Order) -> Names:
        return {self._names[old]: self._names[new] for new, old in enumerate(order)}

    def _rename_head(self, head: tuple[int, ...], order: Order) -> tuple[int, ...]:
        names, (meta, writer, copy) = self._new_names(order), head
        found = self._renamed_heads[head, order] = (
            self._renaming.metadata(meta, names),
            self._writers.number(self._renaming.writer(self._writers.values[writer], names)),
            self._copies.number(self._renaming.copy(self._copies.values[copy], names)),
        )
        return found

    def _rename_tail(self, tail: tuple[int, ...], order: Order) -> tuple[int, ...]:
        names = self._new_names(order)
        renamed = (self._renaming.recovery(self._recoveries.values[one], names) for one in tail)
        found = self._renamed_tails[tail, order] = tuple(
            sorted(self._recoveries.number(one) for one in renamed)
        )
        return found
