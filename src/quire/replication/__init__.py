"""Examination and repair of replicas, by the auditor, the workers, operators' commands and Spark
jobs.

`marks` has what is kept in the metadata store, and `repair` copies entries. `autorecovery`, `moves`
and `audit` build on these. `explain` tells people which replicas are missing and why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire._runtime.names.former_names import former_names
from quire._runtime.names.lazy import lazily

if TYPE_CHECKING:
    from quire.core.replicas import Finding, Kind
    from quire.replication.audit.audit import Audit
    from quire.replication.autorecovery.autorecovery import Autorecovery
    from quire.replication.autorecovery.settings import AutorecoverySettings, AutorecoveryStats
    from quire.replication.budget import Budget
    from quire.replication.explain.status import WhyNot, why_not
    from quire.replication.marks.locks import LockHeldError, ReplicationLocks
    from quire.replication.repair.bookie_removal import (
        LedgerMove,
        LedgerOutcome,
        LedgerResult,
        OpenLedgerState,
        move_of,
        take_out,
    )
    from quire.replication.repair.repair_findings import Repaired, repair_ledger
else:
    _lazily, __dir__ = lazily(
        __name__,
        {
            "Audit": "quire.replication.audit.audit:Audit",
            "Autorecovery": "quire.replication.autorecovery.autorecovery:Autorecovery",
            "AutorecoverySettings": "quire.replication.autorecovery.settings:AutorecoverySettings",
            "AutorecoveryStats": "quire.replication.autorecovery.settings:AutorecoveryStats",
            "Budget": "quire.replication.budget:Budget",
            "Finding": "quire.core.replicas:Finding",
            "Kind": "quire.core.replicas:Kind",
            "LedgerResult": "quire.replication.repair.bookie_removal:LedgerResult",
            "LockHeldError": "quire.replication.marks.locks:LockHeldError",
            "LedgerMove": "quire.replication.repair.bookie_removal:LedgerMove",
            "Repaired": "quire.replication.repair.repair_findings:Repaired",
            "ReplicationLocks": "quire.replication.marks.locks:ReplicationLocks",
            "OpenLedgerState": "quire.replication.repair.bookie_removal:OpenLedgerState",
            "WhyNot": "quire.replication.explain.status:WhyNot",
            "LedgerOutcome": "quire.replication.repair.bookie_removal:LedgerOutcome",
            "move_of": "quire.replication.repair.bookie_removal:move_of",
            "repair_ledger": "quire.replication.repair.repair_findings:repair_ledger",
            "take_out": "quire.replication.repair.bookie_removal:take_out",
            "why_not": "quire.replication.explain.status:why_not",
        },
    )
    __getattr__ = former_names(
        __name__,
        {
            "LedgerWork": "LedgerResult",
            "Move": "LedgerMove",
            "Seen": "OpenLedgerState",
            "Work": "LedgerOutcome",
        },
        otherwise=_lazily,
    )

__all__ = [
    "Audit",
    "Autorecovery",
    "AutorecoverySettings",
    "AutorecoveryStats",
    "Budget",
    "Finding",
    "Kind",
    "LedgerMove",
    "LedgerOutcome",
    "LedgerResult",
    "LockHeldError",
    "OpenLedgerState",
    "Repaired",
    "ReplicationLocks",
    "WhyNot",
    "move_of",
    "repair_ledger",
    "take_out",
    "why_not",
]
