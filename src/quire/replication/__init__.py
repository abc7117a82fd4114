"""Replicas looked at one by one, and made whole again: what the auditor, the workers and Spark's
jobs share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire._runtime.lazy import lazily

if TYPE_CHECKING:
    from quire.core.replicas import Finding, Kind
    from quire.replication.audit import Audit
    from quire.replication.autorecovery import Autorecovery
    from quire.replication.budget import Budget
    from quire.replication.ledger import LedgerWork, Move, Seen, Work, move_of, take_out
    from quire.replication.locks import LockHeldError, ReplicationLocks
    from quire.replication.repair import Repaired, repair_ledger
    from quire.replication.settings import AutorecoverySettings, AutorecoveryStats
    from quire.replication.status import WhyNot, why_not
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "Audit": "quire.replication.audit:Audit",
            "Autorecovery": "quire.replication.autorecovery:Autorecovery",
            "AutorecoverySettings": "quire.replication.settings:AutorecoverySettings",
            "AutorecoveryStats": "quire.replication.settings:AutorecoveryStats",
            "Budget": "quire.replication.budget:Budget",
            "Finding": "quire.core.replicas:Finding",
            "Kind": "quire.core.replicas:Kind",
            "LedgerWork": "quire.replication.ledger:LedgerWork",
            "LockHeldError": "quire.replication.locks:LockHeldError",
            "Move": "quire.replication.ledger:Move",
            "Repaired": "quire.replication.repair:Repaired",
            "ReplicationLocks": "quire.replication.locks:ReplicationLocks",
            "Seen": "quire.replication.ledger:Seen",
            "WhyNot": "quire.replication.status:WhyNot",
            "Work": "quire.replication.ledger:Work",
            "move_of": "quire.replication.ledger:move_of",
            "repair_ledger": "quire.replication.repair:repair_ledger",
            "take_out": "quire.replication.ledger:take_out",
            "why_not": "quire.replication.status:why_not",
        },
    )

__all__ = [
    "Audit",
    "Autorecovery",
    "AutorecoverySettings",
    "AutorecoveryStats",
    "Budget",
    "Finding",
    "Kind",
    "LedgerWork",
    "LockHeldError",
    "Move",
    "Repaired",
    "ReplicationLocks",
    "Seen",
    "WhyNot",
    "Work",
    "move_of",
    "repair_ledger",
    "take_out",
    "why_not",
]
