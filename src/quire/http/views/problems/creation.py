"""The problems that new ledgers or streams cannot be created, or lack copies from the start."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from shlex import quote

from quire._runtime.names.in_commands import command_with
from quire._runtime.units import are, counted, does, listed, size_text, some_of, them, verb
from quire.http.views.creatable import DEFAULT_SHAPE, Creatable
from quire.http.views.problems.problem import Problem, follows_from, waits_for
from quire.http.watch.stream_limits import FullNamespace, FullStream

FAIL = (
    "Programs and streams that do not choose a smaller ensemble fail with NotEnoughBookiesError. "
    "Ledgers that are open can still be written while an ack quorum of their bookies answers"
)


def of_shape(
    creatable: Creatable | None,
    writable: int,
    lost: Collection[str] = (),
    loading: Collection[str] = (),
    readonly: int = 0,
) -> Iterator[Problem]:
    """Yield a problem if programs that do not choose a shape cannot create ledgers.

    Nothing is reported if `creatable` is None, because then it is not known what can be created.
    `lost` has the bookies that are not registered, `loading` those that accept entries once they
    have loaded their log, and `readonly` is the number of other read-only bookies.
    """
    if creatable is None or not writable:
        return  # without a writable bookie, another problem says so
    if creatable.default:
        if creatable.silent:
            yield _short_of_copies(creatable)
        return
    size, write_quorum, ack_quorum = DEFAULT_SHAPE
    do = _other_racks(creatable.movable) if creatable.places else _more_bookies(creatable, readonly)
    because = ""
    if loading and writable + len(loading) >= size:
        because = waits_for(loading)
    elif lost and writable + len(loading) + len(lost) >= size:
        because = follows_from(lost)
    yield Problem(
        "bad",
        f"No ledger with the default ensemble can be created (ensemble {size}, write quorum "
        f"{write_quorum}, ack quorum {ack_quorum}): {creatable.why_not}",
        f"{because}. Otherwise: {do[0].lower()}{do[1:]}" if because else do,
        FAIL,
    )


def of_stream_limits(full: Sequence[FullNamespace]) -> Iterator[Problem]:
    """Yield one problem for all namespaces that may have no more streams."""
    if not full:
        return
    first = full[0]
    raised = command_with("quire namespace set", first.path, then=f"streams_max={2 * first.limit}")
    told = [f"{one.path} has {one.streams:,} of {counted(one.limit, 'stream')}" for one in full]
    yield Problem(
        "warn",
        f"No further stream can be created in {first.path}: it has "
        f"{counted(first.streams, 'stream')}, and its limit streams_max is {first.limit:,}"
        if len(full) == 1
        else f"No further stream can be created in {counted(len(full), 'namespace')}, because "
        "their limits streams_max are reached",
        f"To raise the limit{'' if len(full) == 1 else ', for example'}: {raised}. A limit of a "
        "tenant or of a namespace above is raised there. Or delete streams that nobody needs. To "
        f"list them: {command_with('quire stream list --namespace', first.path)}",
        "Programs that create a stream or a topic there fail with StreamQuotaError. Streams that "
        "exist can be written and read",
        "Nothing: Quire never deletes a stream by itself",
        items=listed(told) if len(full) > 1 else (),
    )


def of_full_streams(full: Sequence[FullStream]) -> Iterator[Problem]:
    """Yield one problem for all streams that have nearly reached their limit `bytes_max`."""
    if not full:
        return
    first = full[0]
    where = f"-n {quote(first.namespace)}"
    raised = command_with(
        "quire stream set", first.name, where, then=f"bytes_max={2 * first.limit}"
    )
    told = [
        f"{one.name} of {one.namespace}: {size_text(one.bytes)} of {size_text(one.limit)}"
        for one in full
    ]
    yield Problem(
        "warn",
        f"Stream {first.name} of {first.namespace} holds {size_text(first.bytes)} of the "
        f"{size_text(first.limit)} that its limit bytes_max allows"
        if len(full) == 1
        else f"{counted(len(full), 'stream')} {verb('have', len(full))} at least 80 % of the bytes "
        "that their limits bytes_max allow",
        f"To raise the limit of the stream{'' if len(full) == 1 else ', for example'}: {raised}. "
        "A limit of the whole namespace is raised with `quire namespace set`. Or truncate records "
        f"that nobody needs. To see what the stream has: "
        f"{command_with('quire explain stream', first.name, where)}",
        "An append that does not fit is refused with StreamQuotaError",
        "Nothing: only the retention of the stream deletes records",
        items=listed(told) if len(full) > 1 else (),
    )


def _short_of_copies(creatable: Creatable) -> Problem:
    """Return the problem of new ledgers whose ensembles have bookies that do not answer."""
    names, answering = creatable.silent, creatable.answering
    size, _, ack_quorum = DEFAULT_SHAPE
    those = them(len(names))
    start = (
        f"Make {those} answer again, as the finding about {those} says, or start another bookie: "
        "quire bookie start --dir DIR"
    )
    if answering < ack_quorum:
        return Problem(
            "bad",
            f"New ledgers with the default ensemble can be created but not written: {answering} "
            f"of {counted(size, 'bookie')} {verb('answer', answering)}, and each entry needs "
            f"{ack_quorum}. {some_of(names)} {does(len(names))} not answer",
            start,
            "Programs and streams that create a ledger wait, and fail after a while",
            bookies=names,
        )
    return Problem(
        "warn",
        f"New ledgers of programs that connect now lack a copy until {some_of(names)} "
        f"{verb('answer', len(names))}: {size} bookies are wanted, and only {answering} "
        f"{are(answering)} writable and {verb('answer', answering)}",
        start,
        f"Each entry of such a ledger has {counted(answering, 'copy')} instead of {size}. A ledger "
        f"with a larger ensemble or write quorum, which needs {those} as well, cannot be created, "
        "or fails at its first entries. A program whose connections are open and still work writes "
        "all copies",
        "Writers continue with the bookies that answer. Autorecovery copies what is missing later",
        names,
    )


def _other_racks(movable: str) -> str:
    """Return what to do if there are enough bookies, but in the wrong racks.

    `movable` is a bookie that could be given another location.
    """
    locate = command_with("quire cluster locations set", movable, then="/RACK")
    return (
        f"Give each bookie the location of its real rack: {locate}. To see the present "
        "locations: quire cluster locations list. If they are right, start a bookie in another rack"
    )


def _more_bookies(creatable: Creatable, readonly: int) -> str:
    """Return what to do if there are not enough bookies. `readonly` of them are read-only."""
    options = ""
    if creatable.smaller is not None:
        size_now, write_now, ack_now = creatable.smaller
        options = (
            f". Until then, a ledger can be created with: quire ledger write --ensemble {size_now} "
            f"--write-quorum {write_now} --ack-quorum {ack_now}. A stream can be written after: "
            f"quire stream set NAME ensemble_size={size_now} write_quorum={write_now} "
            f"ack_quorum={ack_now}"
        )
    room = ", or make room on one that is read-only" if readonly else ""
    return f"Start another bookie{room}{options}"
