"""The choice of ensembles against its laws, for any bookies, hosts, exclusions and doubts.

The laws follow from what an ensemble is for: the same entry on different machines, never on a
bookie that is known to be unfit, and on one that failed a moment ago rather than nowhere.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.core.placement import choose

BOOKIES = [f"b{number}" for number in range(9)]
HOSTS = ["h0", "h1", "h2", "h3"]
SEEDS_FOR_ALL = 400


@dataclass(frozen=True)
class Question:
    candidates: Mapping[str, str]
    count: int
    exclude: frozenset[str]
    avoid: frozenset[str]
    used_hosts: frozenset[str]

    def ask(self, seed: int) -> list[str]:
        return choose(
            self.candidates, self.count, random.Random(seed), exclude=self.exclude,
            avoid=self.avoid, used_hosts=self.used_hosts,
        )  # fmt: skip

    @property
    def fit(self) -> set[str]:
        return set(self.candidates) - self.exclude

    @property
    def liked(self) -> set[str]:
        return self.fit - self.avoid

    def fresh(self, bookies: set[str]) -> set[str]:
        """Their hosts, less those that are used."""
        return {self.candidates[bookie] for bookie in bookies} - self.used_hosts


SOME_BOOKIES = st.frozensets(st.sampled_from(BOOKIES), max_size=3)
"""Few, so that most questions leave a choice."""
QUESTIONS = st.builds(
    Question,
    candidates=st.dictionaries(st.sampled_from(BOOKIES), st.sampled_from(HOSTS), min_size=2)
    | st.just({}),
    count=st.integers(0, 4) | st.just(len(BOOKIES) + 1),
    exclude=SOME_BOOKIES,
    avoid=SOME_BOOKIES,
    used_hosts=st.frozensets(st.sampled_from(HOSTS), max_size=2),
)
SEEDS = st.integers(0, 2**32)


@given(QUESTIONS, SEEDS)
def test_as_many_as_asked_for_or_as_there_are(question: Question, seed: int) -> None:
    chosen = question.ask(seed)
    assert len(chosen) == min(question.count, len(question.fit))


@given(QUESTIONS, SEEDS)
def test_none_twice_and_none_that_is_excluded_or_unknown(question: Question, seed: int) -> None:
    chosen = question.ask(seed)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= question.fit


@given(QUESTIONS, SEEDS)
def test_a_doubtful_one_only_where_nothing_else_is_left(question: Question, seed: int) -> None:
    chosen = question.ask(seed)
    liked = sum(bookie in question.liked for bookie in chosen)
    assert liked == min(question.count, len(question.liked))
    # And behind the others: what is kept of a longer answer has the better ones.
    assert all(bookie in question.liked for bookie in chosen[:liked])


@given(QUESTIONS, SEEDS)
def test_as_many_hosts_as_can_be(question: Question, seed: int) -> None:
    chosen = question.ask(seed)
    liked = [bookie for bookie in chosen if bookie in question.liked]
    found = {question.candidates[bookie] for bookie in liked} - question.used_hosts
    assert len(found) == min(len(liked), len(question.fresh(question.liked)))


@given(QUESTIONS, SEEDS)
def test_a_host_is_shared_only_when_every_other_is_used(question: Question, seed: int) -> None:
    chosen = question.ask(seed)
    liked = [bookie for bookie in chosen if bookie in question.liked]
    for bookies, known in (
        (liked, question.used_hosts),
        (chosen[len(liked) :], question.used_hosts | {question.candidates[b] for b in liked}),
    ):
        shared = False
        hosts = set(known)
        for bookie in bookies:
            host = question.candidates[bookie]
            assert not shared or host in hosts, "a fresh host behind one that was used"
            shared = shared or host in hosts
            hosts.add(host)


@given(QUESTIONS, SEEDS, st.randoms(use_true_random=False))
def test_the_same_chance_gives_the_same_choice(
    question: Question, seed: int, order: random.Random
) -> None:
    """Whatever the order in which the metadata store names the bookies."""
    items = list(question.candidates.items())
    order.shuffle(items)
    other = Question(
        dict(items), question.count, question.exclude, question.avoid, question.used_hosts
    )
    assert other.ask(seed) == question.ask(seed)


def test_every_bookie_has_its_turn() -> None:
    question = Question(
        dict.fromkeys(BOOKIES, "one"), 3, frozenset(), frozenset(), frozenset()
    )  # fmt: skip
    turns = Counter(b for seed in range(SEEDS_FOR_ALL) for b in question.ask(seed))
    # Each is expected in a third of the answers; half of that is eight standard deviations away.
    assert set(turns) == set(BOOKIES)
    assert min(turns.values()) > SEEDS_FOR_ALL / 6


class EnsembleMachine(RuleBasedStateMachine):
    """A ledger whose bookies come and go, and whose ensemble is replaced as the client does it:
    the others of the ensemble are excluded, and so are their hosts while there are different
    ones."""

    @initialize(seed=SEEDS, size=st.integers(1, 4))
    def begin(self, seed: int, size: int) -> None:
        self.chance = random.Random(seed)
        self.alive: dict[str, str] = {}
        self.ensemble: list[str] = []
        self.hosts: dict[str, str] = {}
        self.failed: set[str] = set()
        self.size = size

    @rule(bookie=st.sampled_from(BOOKIES), host=st.sampled_from(HOSTS))
    def starts(self, bookie: str, host: str) -> None:
        self.alive[bookie] = self.hosts[bookie] = host

    @rule(bookie=st.sampled_from(BOOKIES))
    def stops(self, bookie: str) -> None:
        self.alive.pop(bookie, None)

    @rule()
    def is_forgiven(self) -> None:
        self.failed.clear()

    @precondition(lambda self: not self.ensemble)
    @rule()
    def creates(self) -> None:
        chosen = choose(self.alive, self.size, self.chance, avoid=self.failed)
        if len(chosen) == self.size:
            self.ensemble = chosen
            self.spread(chosen, set())

    @precondition(lambda self: self.ensemble)
    @rule(at=st.integers(0, 3))
    def replaces(self, at: int) -> None:
        at %= self.size
        others = self.ensemble[:at] + self.ensemble[at + 1 :]
        self.failed.add(self.ensemble[at])
        hosts = {self.hosts[bookie] for bookie in others}
        chosen = choose(
            self.alive, 1, self.chance, exclude=self.ensemble, avoid=self.failed, used_hosts=hosts
        )
        left = set(self.alive) - set(self.ensemble)
        assert len(chosen) == min(1, len(left))
        if chosen:
            (new,) = chosen
            assert new in left
            assert new not in self.failed or left <= self.failed
            self.ensemble[at] = new
            self.spread(chosen, hosts)

    def spread(self, chosen: Sequence[str], used: set[str]) -> None:
        """A host twice means that no other host had a bookie that is liked."""
        liked = {b for b in self.alive if b not in self.failed}
        mine = [b for b in chosen if b in liked]
        hosts = Counter(self.alive[b] for b in mine)
        if any(count > 1 for count in hosts.values()) or used & set(hosts):
            free = {
                self.alive[b] for b in liked if b not in self.ensemble and b not in chosen
            } - used  # fmt: skip
            assert free <= set(hosts)

    @invariant()
    def no_bookie_stands_twice(self) -> None:
        ensemble = getattr(self, "ensemble", [])
        assert len(set(ensemble)) == len(ensemble)


TestEnsembles = EnsembleMachine.TestCase
