"""The ledger client, for asyncio. The same names without `await` are in `quire.blocking`."""

from quire.client.client import Client, connect
from quire.client.read.reader import LedgerReader
from quire.client.write.caller_ids import CallerIdWriter
from quire.client.write.writer import LedgerWriter

__all__ = ["CallerIdWriter", "Client", "LedgerReader", "LedgerWriter", "connect"]
