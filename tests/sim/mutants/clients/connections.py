"""Defects of connections: answers that overtake each other, silence, and other addresses."""

from __future__ import annotations

import pytest

from quire.client.cluster.link_watch import LinkWatch
from quire.client.cluster.pool import BookiePool
from quire.core.append.pipeline import AddPipeline
from quire.net import channel
from quire.net.channel import BookieChannel
from tests.sim.mutants.mutant import edit, mutant

ACKNOWLEDGED = (
    "acknowledged_is_on_a_quorum",
    "acknowledged_is_kept",
    "nothing_acknowledged_beyond_the_close",
    "what_is_durable_stays",
    "lac_is_acknowledged",
    "only_the_acknowledged_is_read",
)


@mutant(
    lost="Entries whose answers were overtaken count as stored, and are on too few bookies.",
    invariants=ACKNOWLEDGED,
    workload="disorder",
    seeds=60,
)
def answers_that_skip_entries_are_a_run(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        channel,
        "_tell",
        ("if last - first == len(entries) - 1 and entries == list(range(first, last + 1)):",
         "if last > first:"),
    )  # fmt: skip


@mutant(
    lost="The same, in the watermarks of a writer.",
    invariants=ACKNOWLEDGED,
    workload="disorder",
    seeds=60,
)
def an_answer_confirms_all_before_it(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        AddPipeline,
        "acked",
        ("ahead.add(entry)", "upcoming = entry + 1"),
    )


@mutant(
    lost="The answer to one batch read is taken for that to another.",
    invariants=("entries_are_what_was_appended", "only_our_errors", "no_false_absence",
                "only_a_liar_is_accused", "acknowledged_is_kept", "what_was_read_stays",
                "one_close_wins", "nothing_acknowledged_beyond_the_close"),
    workload="disorder",
    seeds=20,
)  # fmt: skip
def batch_reads_are_answered_in_order(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        BookieChannel,
        "_answer",
        ("batch = self._batch_reads.get(request_id)",
         "batch = next(iter(self._batch_reads.values()), None)"),
    )  # fmt: skip


@mutant(
    lost="A client uses a dead connection until its system notices, and every request times out.",
    invariants=("a_silent_connection_is_left",),
    workload="silent",
    seeds=30,
    rule="bk#2482, bk#4683",
)
def a_silent_connection_is_not_examined(patch: pytest.MonkeyPatch) -> None:
    edit(patch, LinkWatch, "_look_at", ("seen.quiet_since is not None and now", "False and now"))


@mutant(
    lost="The same, because one that is examined is never given up.",
    invariants=("a_silent_connection_is_left",),
    workload="silent",
    seeds=30,
    rule="bk#2482",
)
def a_silent_connection_is_not_replaced(patch: pytest.MonkeyPatch) -> None:
    edit(patch, LinkWatch, "_examine", ("link.give_up(", "str("))


@mutant(
    lost="Clients keep connections to the former address of a bookie that has moved.",
    invariants=("a_silent_connection_is_left",),
    workload="silent",
    seeds=60,
    rule="bk#2382",
)
def a_former_address_is_kept(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        BookiePool,
        "_leave_old_addresses",
        ("if link.address not in", "if False and link.address not in"),
        ("elif returned:", "elif False:"),
    )
