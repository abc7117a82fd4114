"""The report of a repair whose bookie does not return what it acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from quire.core.replicas import Bad, Copies, Kind
from quire.replication.repair.repair_findings import _verify
from quire.replication.repair.replica_reader import Part, ReplicaReader, Unreachable


class Returning:
    """A reader that returns these parts."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts

    async def read(self, ids: Sequence[int]) -> list[Part]:
        return list(self.parts)


WANTED = Copies((3, 4), (b"a", b"b"), (1, 2))


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (Bad(3, 4, Kind.MISSING, "no such entry"), "entries 3 to 4: no such entry"),
        (Bad(4, 4, Kind.DAMAGED), "entries 4 to 4: damaged"),
    ],
)
async def test_the_reason_of_a_failed_repair_is_a_sentence(part: Bad, why: str) -> None:
    """It was the representation of a dataclass."""
    with pytest.raises(Unreachable) as said:
        await _verify(cast(ReplicaReader, Returning(part)), WANTED)
    assert str(said.value) == (
        f"the bookie acknowledged repaired entries, but does not return {why}"
    )
