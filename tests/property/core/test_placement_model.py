"""The choice of ensembles satisfies its rules for any bookies, hosts, exclusions and failures.

An entry goes to different machines, never to a bookie that is known to be unfit, and rather to one
that failed recently than nowhere.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.config import PlacementConfig
from quire.core.placement import Place, RackAware, View, Wanted, choose

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
def test_placement_returns_the_requested_number_or_all_candidates(
    question: Question, seed: int
) -> None:
    chosen = question.ask(seed)
    assert len(chosen) == min(question.count, len(question.fit))


@given(QUESTIONS, SEEDS)
def test_placement_returns_no_duplicate_excluded_or_unknown_bookie(
    question: Question, seed: int
) -> None:
    chosen = question.ask(seed)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= question.fit


@given(QUESTIONS, SEEDS)
def test_a_suspect_bookie_is_chosen_only_if_no_other_is_left(question: Question, seed: int) -> None:
    chosen = question.ask(seed)
    liked = sum(bookie in question.liked for bookie in chosen)
    assert liked == min(question.count, len(question.liked))
    # They come after the others, so that a shortened answer has the better ones.
    assert all(bookie in question.liked for bookie in chosen[:liked])


@given(QUESTIONS, SEEDS)
def test_placement_uses_as_many_hosts_as_possible(question: Question, seed: int) -> None:
    chosen = question.ask(seed)
    liked = [bookie for bookie in chosen if bookie in question.liked]
    found = {question.candidates[bookie] for bookie in liked} - question.used_hosts
    assert len(found) == min(len(liked), len(question.fresh(question.liked)))


@given(QUESTIONS, SEEDS)
def test_a_host_is_shared_only_when_all_others_are_used(question: Question, seed: int) -> None:
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
            assert not shared or host in hosts, "a new host comes after a used one"
            shared = shared or host in hosts
            hosts.add(host)


@given(QUESTIONS, SEEDS, st.randoms(use_true_random=False))
def test_the_same_random_state_gives_the_same_choice(
    question: Question, seed: int, order: random.Random
) -> None:
    """The order in which the metadata store lists bookies does not matter."""
    items = list(question.candidates.items())
    order.shuffle(items)
    other = Question(
        dict(items), question.count, question.exclude, question.avoid, question.used_hosts
    )
    assert other.ask(seed) == question.ask(seed)


def test_every_bookie_is_chosen_at_some_time() -> None:
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


# -- racks ------------------------------------------------------------------------------------

RACKS = ["/a", "/b", "/c", "/d"]
SMALL = st.dictionaries(st.sampled_from(BOOKIES[:7]), st.sampled_from(RACKS), min_size=1)


def rack_view(racks: Mapping[str, str], failed: frozenset[str] = frozenset()) -> View:
    places = {b: Place(b, f"host-{b}", rack) for b, rack in racks.items()}
    return View(places, failed_s=dict.fromkeys(failed, 1.0), located=True)


def spans(racks: Sequence[str], quorum: int, least: int) -> bool:
    """Return whether every write quorum, including wrapped ones, covers this number of racks."""
    size = len(racks)
    return all(
        len({racks[(start + k) % size] for k in range(quorum)}) >= least for start in range(size)
    )


def possible(racks: Mapping[str, str], size: int, quorum: int, least: int) -> bool:
    """Return whether any arrangement of the available racks works, by trying all of them."""
    counts = Counter(racks.values())
    return any(
        all(count <= counts[rack] for rack, count in Counter(tried).items())
        and spans(tried, quorum, least)
        for tried in itertools.product(sorted(counts), repeat=size)
    )


@given(SMALL, st.integers(1, 5), st.data(), SEEDS)
def test_enforced_racks_are_satisfied_whenever_possible(
    racks: dict[str, str], size: int, data: st.DataObject, seed: int
) -> None:
    quorum = data.draw(st.integers(1, size))
    config = PlacementConfig(min_racks=data.draw(st.integers(1, 4)), enforce_racks=True)
    failed = frozenset(data.draw(st.sets(st.sampled_from(BOOKIES), max_size=2)))
    policy, view = RackAware(config), rack_view(racks, failed)
    chosen = policy.fill(Wanted.new(size, quorum), view, random.Random(seed))
    least = min(quorum, config.min_racks)
    assert bool(chosen) == possible(racks, size, quorum, least)
    if chosen:
        members = [chosen[index] for index in range(size)]
        assert len(set(members)) == size
        assert spans([racks[bookie] for bookie in members], quorum, least)
        assert policy.adherence([view.find(b) for b in members], quorum, quorum, view)
        # With as few of those that failed lately as there can be.
        well = {bookie: rack for bookie, rack in racks.items() if bookie not in failed}
        fewest = next(
            count
            for count in range(len(failed) + 1)
            for some in itertools.combinations(sorted(failed & racks.keys()), count)
            if possible({**well, **{b: racks[b] for b in some}}, size, quorum, least)
        )
        assert len(failed & set(members)) == fewest


@given(SMALL, st.integers(1, 5), st.data(), SEEDS)
def test_best_effort_placement_uses_as_many_racks_as_possible(
    racks: dict[str, str], size: int, data: st.DataObject, seed: int
) -> None:
    quorum = data.draw(st.integers(1, size))
    config = PlacementConfig(min_racks=data.draw(st.integers(1, 4)))
    chosen = RackAware(config).fill(Wanted.new(size, quorum), rack_view(racks), random.Random(seed))
    assert bool(chosen) == (len(racks) >= size)
    if chosen:
        found = [racks[chosen[index]] for index in range(size)]
        best = next(
            least
            for least in range(min(quorum, config.min_racks), 0, -1)
            if possible(racks, size, quorum, least)
        )
        assert spans(found, quorum, best)


@given(SMALL, st.integers(2, 4), st.data(), SEEDS)
def test_a_replacement_does_not_weaken_the_placement(
    racks: dict[str, str], size: int, data: st.DataObject, seed: int
) -> None:
    """Two members may be replaced at once. A member that can be replaced alone is replaced."""
    size = min(size, len(racks))
    quorum = data.draw(st.integers(1, size))
    config = PlacementConfig(min_racks=data.draw(st.integers(1, 3)), enforce_racks=True)
    policy, least = RackAware(config), min(quorum, config.min_racks)
    ensemble = tuple(data.draw(st.permutations(sorted(racks)))[:size])
    gone_at = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=2))
    gone = {index: ensemble[index] for index in sorted(gone_at)}
    alive = {b: rack for b, rack in racks.items() if b not in gone.values()}
    known = rack_view(alive)
    others = {b: Place(b, f"host-{b}", racks[b]) for b in gone.values()}
    view = replace(known, others=others)
    wanted = Wanted.replacing(ensemble, gone, quorum, quorum)
    chosen = policy.fill(wanted, view, random.Random(seed))
    assert chosen.keys() <= gone.keys()
    assert not set(chosen.values()) & set(ensemble)
    before = [racks[bookie] for bookie in ensemble]
    after = [racks[chosen.get(index, bookie)] for index, bookie in enumerate(ensemble)]
    for start in range(size):
        window = [(start + k) % size for k in range(quorum)]
        kept = len({before[index] for index in window}) >= least
        assert not kept or len({after[index] for index in window}) >= least
    left = set(alive) - set(ensemble)
    same = [b for b in left if racks[b] in {before[index] for index in gone}]
    assert chosen or not same, "one of the same rack changes nothing"
