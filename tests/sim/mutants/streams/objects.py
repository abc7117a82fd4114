"""Defects of objects: lost ones, former ones that come back, and false answers about them."""

from __future__ import annotations

import pytest

from quire.streams.objects.objects import Objects
from quire.streams.objects.reader import ObjectReader
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="An acknowledged object is lost when others deleted its name and put it again.",
    invariants=(
        "a_former_version_stays_away",
        "a_change_replaces_what_was_read",
        "an_object_is_there",
    ),
    workload="objects",
    seeds=300,
    rule="versions of a node begin again",
)
def a_head_is_written_by_its_version_only(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Objects, "_write_head", ("version, known=known", "version"))


@mutant(
    lost="A late deletion deletes an object that was put after it had begun.",
    invariants=("a_change_replaces_what_was_read",),
    workload="objects",
    seeds=300,
    rule="versions of a node begin again",
)
def a_head_is_deleted_by_its_version_only(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Objects, "_remove_head", ("stored.version, known=known", "stored.version"))


@mutant(
    lost="A put reports that it stored nothing, although others have read and replaced its object.",
    invariants=("what_was_refused_is_not_done",),
    workload="objects",
    seeds=100,
    rule="lost answer",
)
def a_put_forgets_that_an_answer_was_lost(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Objects, "_publish", ("in_doubt |= not error.outcome_known", "pass"))


@mutant(
    lost="A put that succeeded and was replaced at once reports that a sweep has deleted it.",
    invariants=("what_was_refused_is_not_done",),
    workload="objects",
    seeds=100,
)
def a_put_that_was_replaced_blames_a_sweep(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Objects, "_publish", ("case True:", "case True | False:"))


@mutant(
    lost="A sweep deletes the ledger of an object that was published meanwhile.",
    invariants=("an_object_keeps_its_ledger", "an_object_is_there"),
    workload="objects",
    seeds=100,
)
def a_sweep_does_not_look_at_the_head_again(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Objects, "_discard", ("if head.ledger_id == ledger_id:", "if False:"))


@mutant(
    lost="A put without permission replaces an object that was put at the same time.",
    invariants=("a_change_is_what_was_asked_for",),
    workload="objects",
    seeds=100,
)
def a_put_looks_for_the_name_only_at_first(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Objects, "_publish", ("if not replace or (", "if replace and ("))


@mutant(
    lost="An object is reported as deleted and is still there.",
    invariants=("a_deleted_object_is_gone",),
    workload="objects",
    seeds=100,
)
def a_deletion_hides_its_failure(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Objects,
        "_remove_head",
        (
            "except QuireError as error:\n",
            "except MetadataError:\n"
            "                return False\n"
            "            except QuireError as error:\n",
        ),
    )


@mutant(
    lost="A range of an object has bytes of the chunk before it.",
    invariants=("an_object_is_whole",),
    workload="objects",
    seeds=100,
)
def a_range_begins_with_the_whole_chunk(patch: pytest.MonkeyPatch) -> None:
    edit(patch, ObjectReader, "_range", ("max(first_byte - at, 0)", "0"))


@mutant(
    lost="The ledgers of puts that died stay for ever.",
    invariants=("no_ledger_is_left_of_an_object",),
    workload="objects",
    seeds=60,
)
def a_sweep_spares_ledgers_without_an_object(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Objects,
        "_orphan",
        ("if head is None or head.ledger_id != ledger_id:",
         "if head is not None and head.ledger_id != ledger_id:"),
    )  # fmt: skip
