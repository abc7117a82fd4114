"""Defects of metadata: how it changes, and what bookies report to the store."""

from __future__ import annotations

import pytest

from quire.client import recovery
from quire.client.write import writer
from quire.client.write.ensemble_changes import EnsembleChanges
from quire.metadata.ledgers import size, update
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.store import MemoryRegistration, MemoryStore
from tests.sim.mutants.mutant import edit, mutant


def _blind(patch: pytest.MonkeyPatch, module: object) -> None:
    """This module's updates overwrite whatever was stored in the meantime."""
    with pytest.MonkeyPatch.context() as inner:
        edit(
            inner,
            update,
            "update_ledger",
            (
                "current = found",
                "from quire.metadata.interface import Versioned\n"
                "            current = Versioned(current.value, found.version, found.created)",
            ),
        )
        blind = update.update_ledger
    patch.setattr(module, "update_ledger", blind)


@mutant(
    lost="A closed ledger is open again, so there are two writers.",
    invariants=("the_state_goes_on", "one_close_wins", "nothing_acknowledged_beyond_the_close"),
    workload="churn",
    seeds=20,
    rule="BOOKKEEPER-584, rule 18",
)
def the_writer_overwrites_metadata(patch: pytest.MonkeyPatch) -> None:
    _blind(patch, writer)


@mutant(
    lost="A ledger is closed twice, at different entries.",
    invariants=("the_state_goes_on", "one_close_wins"),
    workload="recovery",
    seeds=30,
    rule="BOOKKEEPER-584, rule 18",
)
def a_recovery_overwrites_metadata(patch: pytest.MonkeyPatch) -> None:
    _blind(patch, recovery)


@mutant(
    lost="One change of the metadata overwrites another one.",
    invariants=(
        "acknowledged_is_on_a_quorum",
        "one_close_wins",
        "nothing_acknowledged_beyond_the_close",
    ),
    workload="churn",
    seeds=20,
    rule="rule 18",
)
def the_store_ignores_versions(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        MemoryStore,
        "write_ledger",
        ("if node.version != version:", "if False:"),
        (
            "node.data, node.version = data, version + 1",
            "node.data, node.version = data, node.version + 1",
        ),
    )


@mutant(
    lost="Healthy bookies cannot be found.",
    invariants=("quiet_heals",),
    workload="sessions",
    seeds=20,
)
def an_expired_session_does_not_come_back(patch: pytest.MonkeyPatch) -> None:
    edit(patch, MemoryStore, "restore_session", ("registration.ensure()", "pass"))
    edit(
        patch,
        MemoryRegistration,
        "__init__",
        (
            "store.watch_bookies(lambda bookies: self.ensure())",
            "store.watch_bookies(lambda bookies: None)",
        ),
    )


@mutant(
    lost="A tailing reader never learns that the ledger was closed.",
    invariants=("quiet_heals",),
    workload="tail",
    seeds=20,
)
def nobody_hears_of_a_close(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryCluster, "ledger_changed", lambda self, ledger_id: None)


@mutant(
    lost="A ledger can never be closed, because its writer has filled its metadata.",
    invariants=("metadata_leaves_room", "quiet_heals"),
    workload="full metadata",
    seeds=120,
    rule="full metadata",
)
def no_room_is_left_for_the_close(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        size,
        "ledger_bytes_max",
        ("if state is LedgerState.OPEN else NODE_BYTES_MAX + CLOSING_BYTES", ""),
    )


@mutant(
    lost="A writer fails when another bookie would not fit into the metadata of its ledger.",
    invariants=("metadata_leaves_room",),
    workload="full metadata",
    seeds=60,
    rule="full metadata",
)
def a_writer_ends_when_the_metadata_is_full(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        EnsembleChanges,
        "_replace",
        ("except MetadataTooLargeError as error:", "except ZeroDivisionError as error:"),
    )
