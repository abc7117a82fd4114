"""The ledger client: asyncio first, with a blocking twin of the same names in `blocking`."""

from quire.client.client import Client, connect
from quire.client.read.reader import LedgerReader
from quire.client.write.caller_ids import CallerIdWriter
from quire.client.write.writer import LedgerWriter

__all__ = ["CallerIdWriter", "Client", "LedgerReader", "LedgerWriter", "connect"]
