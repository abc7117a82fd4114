"""The ledger client, for asyncio. The same names without `await` are in `quire.blocking`."""

from quire.client.client import LedgerClient, connect
from quire.client.read.reader import LedgerReader
from quire.client.write.caller_ids import CallerIdWriter
from quire.client.write.writer import LedgerWriter

Client = LedgerClient
"""Another name of `LedgerClient`, for packages that use ledgers only. `quire.Client` extends it."""

__all__ = ["CallerIdWriter", "Client", "LedgerClient", "LedgerReader", "LedgerWriter", "connect"]
