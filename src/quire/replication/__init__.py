"""Replicas looked at one by one, and made whole again: what the auditor, the workers and Spark's
jobs share."""

from quire.core.replicas import Finding, Kind
from quire.replication.audit import Audit
from quire.replication.autorecovery import Autorecovery
from quire.replication.budget import Budget
from quire.replication.ledger import LedgerWork, Move, Seen, Work, move_of, take_out
from quire.replication.locks import LockHeldError, ReplicationLocks
from quire.replication.repair import Repaired, repair_ledger
from quire.replication.settings import AutorecoverySettings, AutorecoveryStats
from quire.replication.status import WhyNot, why_not

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
