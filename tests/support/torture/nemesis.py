"""The faults of a torture run: their kind, target, time and duration are drawn from the seed."""

from __future__ import annotations

import heapq
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime

from quire.errors import UsageError
from tests.support.storage.small_disk import MIB
from tests.support.torture.place import (
    CLIENTS,
    OTHERS,
    ZOOKEEPER,
    BookieServer,
    Place,
    Server,
    copy_directory,
)

PAUSE_MAX_S = 3.0
"""The longest time in seconds between the beginnings of two faults."""
FAULT_MAX_S = 12.0
SESSION_S = 4.0
FAULTS_AT_ONCE_MAX = 4
TICK_S = 0.1
LOG = "faults.log"
"""The name of the file that lists each fault with its time.

It is to be read beside the logs of the servers.
"""
CHECK_EVERY_S = 1.0
"""Seconds between two checks for programs that ended and must be started again."""

End = Callable[[], None]


class Nemesis:
    """The source of faults, which begins them and ends them.

    Each kind of fault is a method. It begins the fault and returns a function that ends it, or it
    returns None if the fault cannot begin now.
    """

    def __init__(self, place: Place, chance: random.Random, only: Collection[str] = ()) -> None:
        """Prepare the faults. Only the kinds in `only` are drawn, or every kind if it is empty."""
        self._place = place
        self._only = only
        self._log = (place.directory / LOG).open("a", encoding="utf-8")
        self._chance = chance
        self.counts: Counter[str] = Counter()
        """The number of faults so far, by kind."""
        self.trouble: list[str] = []
        """The processes that ended by themselves, or did not stop, each with the last line of its
        log.

        A bookie ends by itself if its former registration outlives it, as when ZooKeeper is paused.
        """
        self._ends: list[tuple[float, int, End]] = []
        self._rolled_back: tuple[BookieServer, int] | None = None
        """The bookie whose directory was rolled back, or None once it has reported that it is
        repaired.

        The second value is the number of events "loss_healed" in its log before the roll back.
        """
        self._restarts: list[tuple[float, Server]] = []

    def run(self, until_s: float) -> None:
        """Begin and end faults until the monotonic time `until_s`, and then end all of them."""
        due_s = checked_s = time.monotonic()
        while (now_s := time.monotonic()) < until_s:
            if now_s >= due_s:
                due_s = now_s + self._chance.uniform(0.1, PAUSE_MAX_S)
                if len(self._ends) < FAULTS_AT_ONCE_MAX:
                    self._begin(now_s)
            while self._ends and self._ends[0][0] <= now_s:
                heapq.heappop(self._ends)[2]()
            if now_s - checked_s >= CHECK_EVERY_S:
                checked_s = now_s
                self._check()
            time.sleep(TICK_S)
        while self._ends:
            heapq.heappop(self._ends)[2]()
        if self._place.net is not None:
            self._place.net.heal()
        self._log.close()

    # -- choosing -----------------------------------------------------------------------------

    def _begin(self, now_s: float) -> None:
        kinds: dict[str, tuple[int, Callable[[], End | None]]] = {
            "bookie killed": (6, self._kill_bookie),
            "bookie stopped": (2, self._stop_bookie),
            "bookie paused": (4, self._pause_bookie),
            "all bookies killed": (1, self._kill_all),
            "client killed": (5, self._kill_program),
            "client paused": (3, self._pause_program),
            "autorecovery killed": (2, self._kill_healer),
            "ZooKeeper killed": (1, self._kill_zookeeper),
            "ZooKeeper paused": (2, self._pause_zookeeper),
            "directory rolled back": (3, self._roll_back),
        }
        if self._place.net is not None:
            kinds["network cut"] = (4, self._cut)
            kinds["network cut one way"] = (2, self._cut_one_way)
            kinds["connections silenced"] = (2, self._silence)
        if all(bookie.disk is not None for bookie in self._place.bookies):
            kinds["disk filled"] = (2, self._fill)
        if self._only:
            kinds = {kind: what for kind, what in kinds.items() if kind in self._only}
        kind = self._chance.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
        self._whom = ""
        end = kinds[kind][1]()
        if end is None:
            return
        self.counts[kind] += 1
        lasts_s = self._chance.choice((0.1, 1.0, SESSION_S + 2.0, FAULT_MAX_S))
        lasts_s = self._chance.uniform(0.0, lasts_s)
        self._note(f"{kind} {self._whom}for {lasts_s:.1f} s")
        heapq.heappush(self._ends, (now_s + lasts_s, self.counts.total(), end))

    def _note(self, what: str) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._log.write(f"{at} {what}\n")
        self._log.flush()

    def _take(self, servers: list[Server]) -> Server | None:
        able = [server for server in servers if not server.busy and server.process.alive]
        if not able:
            return None
        server = self._chance.choice(able)
        server.busy = True
        self._whom = f"{server.name} "
        return server

    def _take_bookie(self) -> BookieServer | None:
        found = self._take(list(self._place.bookies))
        assert found is None or isinstance(found, BookieServer)
        return found

    def _restarted(self, server: Server) -> End:
        def end() -> None:
            server.start()
            server.busy = False

        return end

    def _check(self) -> None:
        """Start the processes that ended without a fault again, and note each of them in `trouble`.

        A client program that ended with status 0 is no trouble.
        """
        for server in self._place.servers:
            if not server.busy and not server.process.alive:
                ended = f"{server.name} ended {server.process.how_it_ended()}"
                if server not in self._place.programs or server.process.returncode not in (0, None):
                    ended += f": {server.process.last_words()}"
                    self.trouble.append(ended)
                self._note(ended)
                server.start()
        if self._rolled_back is not None:
            bookie, healed = self._rolled_back
            if bookie.events("loss_healed") > healed:
                self._rolled_back = None
                self.counts["healed after a roll back"] += 1
                self._note(f"{bookie.name} is healed")

    # -- processes ----------------------------------------------------------------------------

    def _kill_bookie(self) -> End | None:
        bookie = self._take_bookie()
        if bookie is None:
            return None
        bookie.process.kill()
        self._maybe_copy(bookie)
        return self._restarted(bookie)

    def _stop_bookie(self) -> End | None:
        bookie = self._take_bookie()
        if bookie is None:
            return None
        # A bookie that has just been started has no handler for the signal yet.
        if not bookie.process.stop() and bookie.process.returncode != -signal.SIGTERM:
            ended, words = bookie.process.how_it_ended(), bookie.process.last_words()
            self.trouble.append(f"{bookie.name} was stopped and ended {ended}: {words}")
        self._maybe_copy(bookie)
        return self._restarted(bookie)

    def _kill_all(self) -> End | None:
        taken = [bookie for bookie in self._place.bookies if not bookie.busy]
        for bookie in taken:
            bookie.busy = True
            bookie.process.kill()

        def end() -> None:
            for bookie in taken:
                bookie.start()
                bookie.busy = False

        return end

    def _pause_bookie(self) -> End | None:
        return self._paused(self._take_bookie())

    def _kill_program(self) -> End | None:
        return self._killed(self._take(self._place.programs))

    def _pause_program(self) -> End | None:
        return self._paused(self._take(self._place.programs))

    def _kill_healer(self) -> End | None:
        return self._killed(self._take(self._place.healers))

    def _killed(self, server: Server | None) -> End | None:
        if server is None:
            return None
        server.process.kill()
        return self._restarted(server)

    def _paused(self, server: Server | None) -> End | None:
        if server is None:
            return None
        server.process.pause()

        def end() -> None:
            with suppress(UsageError):
                server.process.resume()
            server.busy = False

        return end

    # -- ZooKeeper ----------------------------------------------------------------------------

    def _kill_zookeeper(self) -> End | None:
        zookeeper = self._place.zookeeper
        if zookeeper.busy or not zookeeper.process.alive:
            return None
        zookeeper.busy = True
        zookeeper.kill()
        return self._restarted(zookeeper)

    def _pause_zookeeper(self) -> End | None:
        zookeeper = self._place.zookeeper
        if zookeeper.busy or not zookeeper.process.alive:
            return None
        zookeeper.busy = True
        zookeeper.signal(signal.SIGSTOP)

        def end() -> None:
            zookeeper.signal(signal.SIGCONT)
            zookeeper.busy = False

        return end

    # -- networks -----------------------------------------------------------------------------

    def _two(self) -> tuple[str, str]:
        bookie = self._chance.choice(self._place.bookies).machine
        other = self._chance.choice((CLIENTS, CLIENTS, OTHERS, ZOOKEEPER))
        if self._chance.random() < 0.15:
            bookie, other = CLIENTS, ZOOKEEPER
        self._whom = f"between {bookie} and {other} "
        return bookie, other

    def _healed(self) -> None:
        """End all cuts of the network at once, including those of other faults."""
        assert self._place.net is not None
        self._place.net.heal()

    def _cut(self) -> End | None:
        assert self._place.net is not None
        self._place.net.cut(*self._two())
        return self._healed

    def _cut_one_way(self) -> End | None:
        assert self._place.net is not None
        one, other = self._two()
        sender, receiver = (one, other) if self._chance.random() < 0.5 else (other, one)
        self._place.net.cut_way(sender, receiver)
        return self._healed

    def _silence(self) -> End | None:
        assert self._place.net is not None
        bookies = [bookie.machine for bookie in self._place.bookies]
        silenced = self._chance.sample(bookies, self._chance.randint(1, len(bookies)))
        if not self._place.net.silence(CLIENTS, *silenced):
            return None
        return self._healed

    # -- disks --------------------------------------------------------------------------------

    def _fill(self) -> End | None:
        bookie = self._take_bookie()
        if bookie is None:
            return None
        disk = bookie.disk
        assert disk is not None
        with suppress(OSError):  # The bookie may take the rest first.
            disk.leave(self._chance.choice((0, 64 * 1024, 1 * MIB, 12 * MIB)))

        def end() -> None:
            (disk.seen / "ballast").unlink(missing_ok=True)
            bookie.busy = False

        return end

    def _maybe_copy(self, bookie: BookieServer) -> None:
        """Copy the directory of a bookie that does not run, so that it can be rolled back later.

        An existing copy is replaced only sometimes, so that copies grow old.
        """
        if bookie.copy is None or self._chance.random() < 0.3:
            copy = self._place.directory / "copies" / bookie.name
            copy_directory(bookie.data, copy)
            bookie.copy, bookie.served = copy, bookie.events("serving")

    def _roll_back(self) -> End | None:
        """Replace a bookie's directory with an older copy.

        No other directory is rolled back until the bookie has repaired its loss, because an entry
        may have only two copies.
        """
        if self._rolled_back is not None:
            return None
        bookie = self._take_bookie()
        if bookie is None:
            return None
        if bookie.copy is None or bookie.events("serving") == bookie.served:
            bookie.busy = False
            return None  # The copy is not older than the directory.
        bookie.process.kill()
        copy_directory(bookie.copy, bookie.data)
        self._rolled_back = bookie, bookie.events("loss_healed")
        return self._restarted(bookie)
