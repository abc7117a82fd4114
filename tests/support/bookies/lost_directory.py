"""A bookie with several data directories, of which tests lose and replace some."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from click.testing import CliRunner, Result

from quire.bookie.server import Bookie
from quire.cli.main import cli
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.metadata.cookie import decode, split_directories
from quire.codec.wire import v2 as frames
from quire.codec.wire.v2 import Code
from quire.errors import CookieError
from quire.metadata.interface import MetadataStore
from quire.storage.disk import RealDisk
from tests.support.bookies.bookie import SMALL, peer_of, running_bookie
from tests.support.metadata.metadata import in_store

KEY = master_key(b"")


TINY = replace(SMALL, segment_bytes=1024 * 1024)


T = TypeVar("T")


def entry(ledger_id: int) -> bytes:
    return EntryCodec(ledger_id, DigestType.CRC32C, b"").pack(0, -1, 5, b"entry")


class Place:
    """The directories of bookie b, its cluster, and the commands that tests run on them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = f"sqlite:///{root}/cluster.db"

    def path(self, name: str) -> str:
        return str(self.root / name)

    def in_store(self, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
        return in_store(self.uri, work)

    def serve(self, names: Sequence[str], work: Callable[[Bookie], Awaitable[T]]) -> T:
        async def run(store: MetadataStore) -> T:
            more = [RealDisk(self.path(one), make=False) for one in names[1:]]
            first = self.root / names[0]
            async with running_bookie(first, TINY, store, bookie_id="b", more=more) as bookie:
                return await work(bookie)

        return self.in_store(run)

    def codes(self, *names: str) -> dict[int, int]:
        """Run the bookie on these directories, and return the codes of reads of entry 0, by ledger.

        The ledgers are 1, 2, and 77, which was never written.
        """

        async def ask(bookie: Bookie) -> dict[int, int]:
            async with peer_of(bookie) as peer:
                return {
                    ledger: frames.RESPONSE.unpack_from(
                        await peer.ask(frames.read_request(ledger, 0))
                    )[2]
                    for ledger in (1, 2, 77)
                }

        return self.serve(names, ask)

    def run(self, verb: str, *words: str) -> Result:
        words = tuple(self.path(one) if one.isalpha() and len(one) > 1 else one for one in words)
        command = ("bookie", "disk", verb, *words, "--metadata", self.uri)
        return CliRunner().invoke(cli, list(command))

    def refused(self, verb: str, *words: str, says: str, status: int = 2) -> str:
        before = self.state()
        done = self.run(verb, *words)
        assert (done.exit_code, done.stdout) == (status, "")
        assert says in done.stderr
        assert "nothing was changed" in done.stderr
        assert self.state() == before
        return done.stderr

    def state(self) -> dict[str, bytes]:
        """Return the files in `current` of each directory, and the cookie in the cluster."""
        files = [*self.root.glob("*/current/*")]
        found = {str(one.relative_to(self.root)): one.read_bytes() for one in files}
        with suppress(CookieError):
            found["cluster"] = self.in_store(lambda store: store.read_cookie("b")).value
        return found

    def listed(self) -> list[str]:
        known = decode(self.in_store(lambda store: store.read_cookie("b")).value)
        return [Path(one).name for one in split_directories(known.ledger_dirs)]


def lossy(here: int, *gone: int) -> dict[int, int]:
    return {here: Code.OK, **dict.fromkeys((*gone, 77), Code.UNKNOWN_LEDGER_STATE)}
