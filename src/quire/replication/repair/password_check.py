"""The check of a password before copies of an open ledger whose metadata stores none.

A bookie that did not know a ledger keeps the key of the first add. With a wrong key it would later
refuse the writer of the ledger, and its recovery.
"""

from __future__ import annotations

from quire.client import Client
from quire.core.fragments import next_stored
from quire.core.replicas import Copies
from quire.errors import BookieError, UnauthorizedError
from quire.replication.repair.opened_ledger import OpenedLedger
from quire.replication.repair.recovery_adds import RecoveryAdds
from quire.replication.repair.replica_reader import ReplicaReader, Unreachable


async def check_password(client: Client, ledger: OpenedLedger) -> None:
    """Check that a bookie accepts the password of an open ledger whose metadata stores none.

    A bookie that has an entry gets the same entry again, with the key of the password. This changes
    nothing, and unlike a fencing read it does not stop the writer. The password of other ledgers is
    not checked: it is in the metadata, or nobody needs it any more, because the ledger is closed.

    Raises:
        UnauthorizedError: A bookie refuses the password, or no bookie that answers has an entry.
    """
    metadata, ledger_id = ledger.metadata, ledger.ledger_id
    if metadata.closed or metadata.password is not None:
        return
    remedy = (
        "Close the ledger with its password (`quire ledger recover`), or give the password to "
        "`quire bookie recover --password`"
    )
    for fragment in ledger.fragments():
        for index, bookie in enumerate(fragment.ensemble):
            entry = next_stored(metadata, index, fragment.first)
            if entry > fragment.last:
                continue
            reader = ReplicaReader(client, ledger_id, metadata, ledger.codec, bookie)
            try:
                (part,) = await reader.read((entry,))
                if not isinstance(part, Copies):
                    continue
                async with RecoveryAdds(client, ledger, bookie, in_place=True) as adds:
                    await adds.write(part)
            except (Unreachable, BookieError):
                continue
            except UnauthorizedError as error:
                raise UnauthorizedError(
                    f"nothing of ledger {ledger_id} was copied: it is open, its metadata stores no "
                    f"password, and bookie {bookie} refuses the one that was given",
                    ledger_id=ledger_id,
                    remedy=remedy,
                ) from error
            return
    raise UnauthorizedError(
        f"nothing of ledger {ledger_id} was copied: it is open, its metadata stores no password, "
        "and no bookie that answers has an entry with which the given one could be checked",
        ledger_id=ledger_id,
        remedy=remedy,
    )
