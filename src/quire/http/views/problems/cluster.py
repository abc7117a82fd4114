"""All problems of a cluster, the worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.client.cluster.health import UnhealthyBookie
from quire.http.server.security import is_loopback
from quire.http.views.creatable import Creatable
from quire.http.views.problems.autorecovery import of_autorecovery
from quire.http.views.problems.certificates import OwnCertificates, of_certificates
from quire.http.views.problems.collection import Collection, of_collection
from quire.http.views.problems.creation import of_full_streams, of_shape, of_stream_limits
from quire.http.views.problems.damage import (
    DamageNotes,
    of_damage,
    of_damage_notes,
    of_suspects,
    without_lost,
)
from quire.http.views.problems.disks import of_compaction, of_disks
from quire.http.views.problems.lost_bookies import of_lost_bookies
from quire.http.views.problems.lost_data import of_data, of_owners
from quire.http.views.problems.places import of_places
from quire.http.views.problems.problem import Bookie, Problem, worst_first
from quire.http.views.problems.read_only import is_loading, of_read_only
from quire.http.views.problems.reports import of_clocks, of_refusals
from quire.http.views.problems.silent_bookies import of_silent_bookies
from quire.http.watch.stream_limits import FullNamespace, FullStream
from quire.replication.explain.at_risk import AtRisk
from quire.replication.explain.copies import CopyProblem, of_copies
from quire.replication.marks.copy_notes import CopyNote
from quire.streams.ownership.lost_ledgers import LostLedgers


def problems(
    bookies: Sequence[Bookie],
    autorecovery: Mapping[str, Any],
    risk: AtRisk | None = None,
    lost: LostLedgers | None = None,
    *,
    now_ms: int = 0,
    collection: Collection | None = None,
    creatable: Creatable | None = None,
    certificates: OwnCertificates | None = None,
    damage: DamageNotes | None = None,
    full: Sequence[FullNamespace] = (),
    full_streams: Sequence[FullStream] = (),
    copies: Sequence[CopyNote] = (),
    own_id: str = "",
    suspects: Sequence[UnhealthyBookie] = (),
) -> list[Problem]:
    """Return the problems of a cluster, the worst first.

    Args:
        bookies: The bookies, as `bookie_facts` describes them.
        autorecovery: An `Overview` as a dictionary.
        risk: The data at risk in the groups that `lost_groups` returns. None if it was not counted.
        lost: The lost ledgers that were found. None before the first search.
        now_ms: The current Unix time in milliseconds.
        collection: The state of garbage collection in the cluster.
        creatable: Whether ledgers can be created. None if it is not known.
        certificates: The TLS files of this process.
        damage: The notes of bookies about damage, by the bookie's id.
        full: The namespaces that may have no more streams.
        full_streams: The streams that have nearly reached their size limit.
        copies: The continuous copies of streams that have a note in the cluster.
        own_id: The instance id of the cluster.
        suspects: The bookies that gave wrong answers to this process.
    """
    own = certificates or OwnCertificates()
    collected = collection or Collection()
    notes = without_lost(damage or {}, bookies)
    lost_ones = [one["id"] for one in bookies if one["state"] == "gone"]
    loading = [one["id"] for one in bookies if is_loading(one)]
    writable = sum(one["state"] == "writable" for one in bookies)
    readonly = sum(one["state"] == "read-only" for one in bookies) - len(loading)
    found = [
        *of_data(risk, autorecovery),
        *of_owners(lost, collection_off=bool(collected.off)),
        *of_collection(collected, 0 if lost is None else lost.count),
        *of_lost_bookies(bookies, autorecovery, risk, now_ms),
        *of_certificates(bookies, own, now_ms),
        *of_silent_bookies(bookies, autorecovery, authority_expired=own.authority_expired(now_ms)),
        *of_read_only(bookies, writable, now_ms),
        *of_disks(bookies),
        *of_compaction(bookies),
        *of_clocks(bookies),
        *of_refusals(bookies),
        *of_suspects(suspects),
        *of_damage_notes(notes, autorecovery, now_ms),
        *of_damage([one for one in bookies if one["id"] not in notes], autorecovery),
        *of_shape(creatable, writable, lost_ones, loading, readonly),
        *of_stream_limits(full),
        *of_full_streams(full_streams),
        *(_of_copy(one) for one in of_copies(copies, own_id, now_ms)),
        *of_places(bookies, autorecovery, now_ms),
        *of_autorecovery(
            autorecovery,
            now_ms,
            one_machine=_on_loopback(bookies),
            lacking=_lacking(bookies, risk),
            lost=lost_ones,
            loading=loading,
            without_spare=0 if risk is None else risk.without_spare,
        ),
    ]
    return worst_first(found)


def _of_copy(one: CopyProblem) -> Problem:
    return Problem("warn", one.what, one.next, one.risk, one.doing, items=one.items)


def _lacking(bookies: Sequence[Bookie], risk: AtRisk | None) -> int | None:
    """Return the number of ledgers that lack copies because bookies are lost, as far as counted.

    The result is None if bookies are lost and no such ledger was counted yet.
    """
    if all(one["state"] != "gone" for one in bookies):
        return 0
    return risk.lacking if risk is not None and (risk.whole or risk.lacking) else None


def _on_loopback(bookies: Sequence[Bookie]) -> bool:
    """Return whether all bookies can be reached only from this machine."""
    hosts = {one.get("host") for one in bookies}
    return bool(hosts) and all(host is not None and is_loopback(host) for host in hosts)
