"""The rules of the deferred-sync pipeline, one by one, and of restarts in any pipeline."""

from __future__ import annotations

import pytest

from quire.codec.wire.v2 import add_request
from quire.core.append.deferred_pipeline import DeferredPipeline
from quire.core.append.pipeline import AddPipeline, Block


def pushed(pipeline: DeferredPipeline, count: int) -> None:
    first, length = pipeline.last_pushed + 1, pipeline.length
    data = b"".join(add_request(bytes(20), bytes(40)) for _ in range(count))
    pipeline.push(Block(first, first + count - 1, (data,), length, length + 40 * count, 1.0))


def accepting(count: int, *members: int) -> DeferredPipeline:
    """Three members of which these have accepted everything."""
    pipeline = DeferredPipeline(3, 3, 2)
    pushed(pipeline, count)
    for index in members:
        pipeline.acked(index, range(count))
    pipeline.confirm()
    return pipeline


def test_only_a_force_confirms_deferred_entries() -> None:
    pipeline = accepting(5, 0, 1)
    assert (pipeline.accepted, pipeline.last_confirmed) == (4, -1)
    assert pipeline.unconfirmed_bytes == 200
    assert pipeline.forced(4, pipeline.generation)
    assert pipeline.last_confirmed == 4
    assert pipeline.unconfirmed_bytes == 0


def test_entries_accepted_before_a_member_was_lost_do_not_count() -> None:
    pipeline = accepting(5, 0, 1)
    pipeline.frozen = True
    pipeline.park({0})
    pipeline.frozen = False
    assert pipeline.present() == [1, 2]
    assert pipeline.stored_through() == -1
    assert pipeline.accepted == 4  # The earlier result stays.
    pipeline.acked(2, range(5))
    assert pipeline.stored_through() == 4


@pytest.mark.parametrize("same", [False, True], ids=["a replacement", "the same bookie"])
def test_a_force_sent_before_a_member_restarted_confirms_nothing(*, same: bool) -> None:
    """The same bookie may have lost what it accepted, together with its connection."""
    pipeline = accepting(5, 0, 1)
    through, generation = pipeline.stored_through(), pipeline.generation
    pipeline.frozen = True
    pipeline.restart({0}, 2.0, same=same)
    pipeline.frozen = False
    assert not pipeline.forced(through, generation)
    assert pipeline.last_confirmed == -1
    assert [last for last, _ in pipeline.frames_for(0, -1)] == [4], (
        "the member is sent everything again"
    )


def test_nothing_is_confirmed_while_the_ensemble_changes() -> None:
    """The new segment begins after the LAC, which must not move meanwhile (rule 10)."""
    pipeline = accepting(5, 0, 1)
    pipeline.frozen = True
    assert not pipeline.forced(4, pipeline.generation)
    assert pipeline.last_confirmed == -1


def test_accepted_blocks_are_kept_until_they_are_forced() -> None:
    pipeline = accepting(5, 0, 1, 2)
    pushed(pipeline, 3)
    for index in range(3):
        pipeline.acked(index, range(5, 8))
    pipeline.confirm()
    pipeline.forced(4, pipeline.generation)
    assert pipeline.unconfirmed_bytes == 120
    pipeline.restart({1}, 2.0)
    assert [last for last, _ in pipeline.frames_for(1, pipeline.last_confirmed)] == [7]


def test_members_of_a_striped_ledger_count_only_for_their_own_entries() -> None:
    pipeline = DeferredPipeline(3, 2, 2)
    pushed(pipeline, 3)  # entry 0 belongs to 0 and 1, entry 1 to 1 and 2, entry 2 to 2 and 0
    pipeline.acked(0, [0])
    pipeline.acked(1, [0, 1])
    pipeline.confirm()
    assert pipeline.accepted == 0
    assert pipeline.has_unforced(2)
    assert pipeline.forced(0, pipeline.generation)
    pipeline.acked(2, [1, 2])
    pipeline.confirm()
    assert pipeline.accepted == 1


def test_a_force_sent_before_a_member_was_lost_confirms_nothing() -> None:
    """The member that answers the force now may have lost what it had accepted before."""
    pipeline = accepting(5, 0, 1, 2)
    through, generation = pipeline.stored_through(), pipeline.generation
    pipeline.park({0})
    assert not pipeline.forced(through, generation)
    assert pipeline.last_confirmed == -1
    assert pipeline.forced(pipeline.stored_through(), pipeline.generation)
    assert pipeline.last_confirmed == 4


def test_an_early_ack_does_not_count_for_the_replacement_of_its_bookie() -> None:
    pipeline = AddPipeline(3, 3, 2)
    for entry in range(3):
        length = pipeline.length
        pipeline.push(Block(entry, entry, (b"",), length, length + 1, 0.0))
    pipeline.acked(2, [1, 2])
    pipeline.restart([2], 1.0)
    pipeline.acked(0, range(3))
    pipeline.acked(2, [0])
    assert pipeline.confirm()
    assert pipeline.last_confirmed == 0
