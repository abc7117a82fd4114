"""Defects of what clients do about Byzantine bookies."""

from __future__ import annotations

import pytest

from quire.client.read.engine import ReadEngine
from quire.codec.entry import entry
from quire.codec.entry.entry import EntryCodec
from quire.core.recovery import RecoveryVotes, TrustModel
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="A Byzantine denial, together with honest ones, cuts an entry off.",
    invariants=("acknowledged_is_kept", "acknowledged_is_on_a_quorum"),
    workload="liars",
    seeds=40,
)
def a_denial_of_a_liar_counts_as_any_other(patch: pytest.MonkeyPatch) -> None:
    edit(patch, RecoveryVotes, "__init__", (" + trust.byzantine", ""))


@mutant(
    lost="A reader is given an entry that a bookie invented, with a valid digest.",
    invariants=("entries_are_what_was_appended",),
    workload="liars",
    seeds=20,
)
def one_copy_is_believed_though_it_can_be_forged(patch: pytest.MonkeyPatch) -> None:
    edit(patch, TrustModel, "copies_needed", ("self.byzantine + 1 if self.forgeable else 1", "1"))


@mutant(
    lost="A reader believes that missing entries are acknowledged.",
    invariants=("lac_is_acknowledged", "lac_is_within_the_close"),
    workload="forgers",
    seeds=20,
)
def the_highest_lac_is_believed(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        TrustModel,
        "believed_lac",
        (
            "ranked[self.copies_needed - 1] if len(ranked) >= self.copies_needed",
            "ranked[0] if ranked",
        ),
    )


@mutant(
    lost="Bytes that do not match their digest are delivered and written back.",
    invariants=("entries_are_what_was_appended", "no_bookie_serves_wrong_bytes"),
    workload="liars",
    seeds=20,
    rule="rule 9",
)
def a_digest_that_does_not_match_is_no_matter(patch: pytest.MonkeyPatch) -> None:
    edit(patch, EntryCodec, "check", ("if self.of(meta, view[head:]) != view", "if False and view"))
    patch.setattr(EntryCodec, "all_match", lambda codec, metas, payloads, digests: True)
    edit(
        patch,
        entry,
        "_check_each",
        ("or of(view[start:meta], view[body:at]) != data[meta:body]", ""),
    )


@mutant(
    lost="A reader is given another entry than the one it asked for.",
    invariants=("entries_are_what_was_appended",),
    workload="liars",
    seeds=65,
)
def any_entry_of_the_ledger_will_do(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, EntryCodec, "check", ("if entry_id is not None and entry != entry_id:", "if False:")
    )
    edit(patch, entry, "_check_each", ("entry != expected\n            or ", ""))


@mutant(
    lost="An honest bookie is quarantined because another one answered wrongly.",
    invariants=("only_a_liar_is_accused",),
    workload="liars",
    seeds=20,
)
def who_agrees_is_accused(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        ReadEngine,
        "_agreement",
        ("for index in copies.keys() - votes.copies[content]:", "for index in copies.keys():"),
    )
