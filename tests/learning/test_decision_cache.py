"""DecisionCache: for how many steps a decision is kept, and what invalidates it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.learning.decision_cache import ALONE, NOBODY, Decision, DecisionCache, Situation, situation_of
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.tree import DraftTree

FIRST = Decision(4, (0,))
NOTHING_FOUND = DraftTree.root(1)


def batch(*keys: int) -> list[Sequence]:
    return [Sequence(key, (1, 2, 3), SamplingParams(), 0) for key in keys]


def taken(decision: Decision, sequences: list[Sequence], situation: Situation = ALONE) -> DecisionCache:
    cache = DecisionCache()
    cache.put(decision, sequences, situation)
    return cache


def standing(cache: DecisionCache, sequences: list[Sequence], situation: Situation) -> Decision | None:
    """The cached decision for one more step."""
    declined = cache.declined(sequences, cache.now + 1)
    return NOBODY if declined and not situation.begins else cache.get(sequences, situation)


def stood(cache: DecisionCache, sequences: list[Sequence], situation: Situation = ALONE) -> int:
    """The number of steps for which the decision is kept, if nothing changes."""
    steps = 0
    while steps < 100 and standing(cache, sequences, situation):
        steps += 1
    return steps


def situation(trees: list[DraftTree], read_rows: int = 0, lacking: int = 0) -> Situation:
    return situation_of(trees, read_rows, lacking)


def chain(*chances: float) -> DraftTree:
    return DraftTree.chain(1, range(2, 2 + len(chances)), "a", confidences=chances)


SHORT, LONG = situation([chain(0.5)], 0), situation([chain(*[0.99] * 8)], 0)
SOMETHING = situation([NOTHING_FOUND, chain(0.5)], 0)


def test_a_decision_not_to_draft_is_kept_longer_each_time() -> None:
    cache, lengths = DecisionCache(), []
    for _ in range(30):
        cache.put(NOBODY, batch(1), ALONE)
        lengths.append(stood(cache, batch(1)))
    assert lengths[:3] == [1, 2, 4]
    assert lengths[-1] == lengths[-2] == 32


def test_skipped_steps_count_towards_how_long_a_decision_is_kept() -> None:
    cache = taken(FIRST, batch(1))
    cache.declined(batch(1), 15)
    assert cache.get(batch(1), ALONE) == FIRST
    cache.declined(batch(1), 19)
    assert cache.get(batch(1), ALONE) is None


def test_a_draft_is_granted_again_for_a_few_steps_and_for_more_where_it_is_decided_again() -> None:
    cache = taken(FIRST, batch(1, 2))
    assert stood(cache, batch(1, 2)) == 15
    for steps in (30, 60, 60):
        cache.put(FIRST, batch(1, 2), ALONE)
        assert stood(cache, batch(1, 2)) == steps
    cache.put(Decision(3, (0,)), batch(1, 2), ALONE)
    assert stood(cache, batch(1, 2)) == 15, "another depth is another decision"
    cache.put(NOBODY, batch(1, 2), ALONE)
    assert stood(cache, batch(1, 2)) == 1, "and pauses start short again"


@pytest.mark.parametrize("now", [(1, 3), (1,), (1, 2, 3)])
def test_a_decision_to_draft_for_some_of_a_batch_ends_when_the_batch_changes(now: tuple[int, ...]) -> None:
    assert standing(taken(FIRST, batch(1, 2)), batch(*now), ALONE) is None


def test_a_decision_follows_its_sequences_to_other_places_in_the_batch() -> None:
    assert standing(taken(FIRST, batch(1, 2)), batch(2, 1), ALONE) == replace(FIRST, chosen=[1])


def test_a_decision_to_draft_for_all_covers_newcomers_in_a_batch_of_equal_size() -> None:
    assert standing(taken(FIRST, batch(1)), batch(2), ALONE) == FIRST
    assert standing(taken(FIRST, batch(1)), batch(1, 2), ALONE) is None
    all_of_three = Decision(4, (2, 0, 1))
    assert standing(taken(all_of_three, batch(1, 2, 3)), batch(3, 4, 1), ALONE) == all_of_three
    assert standing(taken(all_of_three, batch(1, 2, 3)), batch(1, 2), ALONE) is None


def test_a_decision_not_to_draft_holds_for_batches_of_about_its_size() -> None:
    for size, stands in [(16, True), (20, True), (13, True), (12, False), (4, False)]:
        decision = taken(NOBODY, batch(*range(16))).get(batch(*range(100, 100 + size)), ALONE)
        assert (decision is not None) is stands


def test_situations_differ_by_the_expected_tokens_of_what_lookups_found() -> None:
    assert situation([NOTHING_FOUND], 0) == situation([NOTHING_FOUND] * 2, 0) == ALONE
    assert situation([chain(0.9, 0.9)], 0) == situation([chain(0.9, 0.8, 0.1, 0.1)], 0) != ALONE
    kinds = [situation([chain(*[0.99] * count)], 0) for count in (1, 2, 4, 8, 16)]
    assert len(set(kinds)) == len(kinds)
    assert situation([chain(0.1), chain(0.9, 0.9)], 0) == SOMETHING != ALONE, "in a batch it is a different situation"


def test_situations_differ_by_about_how_many_prompt_tokens_are_read() -> None:
    assert situation([NOTHING_FOUND], 200) == situation([NOTHING_FOUND], 256) != situation([NOTHING_FOUND], 20)
    assert situation([NOTHING_FOUND] * 2, 200) == situation([NOTHING_FOUND], 200), "and in a batch too"
    assert situation([chain(0.5)], 200) not in (SHORT, situation([NOTHING_FOUND], 200))


def test_situations_differ_by_a_drafters_unread_tokens_beyond_16() -> None:
    assert situation([NOTHING_FOUND], 0, 16) == ALONE != situation([NOTHING_FOUND], 0, 17)
    assert situation([NOTHING_FOUND] * 2, 0, 0) == ALONE


def test_each_situation_has_a_decision_of_its_own() -> None:
    cache = taken(FIRST, batch(1))
    cache.put(Decision(2, (0,)), batch(1), SHORT)
    cache.put(NOBODY, batch(1), LONG)
    told = [standing(cache, batch(1), situation) for situation in (ALONE, SHORT, LONG)]
    assert [decision and decision.depth for decision in told] == [4, 2, 0]
    assert standing(taken(FIRST, batch(1)), batch(1), SHORT) is None, "the deep draft may not pay beside a lookup's find"


def test_a_decision_for_some_of_a_batch_is_not_kept_beside_lookup_finds() -> None:
    cache = DecisionCache()
    cache.put(FIRST, batch(1, 2, 3), SOMETHING, unfound=[0, 1])
    cache.declined(batch(1, 2, 3), 1)
    for unfound in ([0, 1], [0], []):
        assert cache.get(batch(1, 2, 3), SOMETHING, unfound) is None
    assert standing(taken(NOBODY, batch(1, 2), SOMETHING), batch(1, 2), SOMETHING) == NOBODY


def test_a_decision_for_the_sequences_without_a_find_covers_whichever_have_none() -> None:
    cache, three = DecisionCache(), batch(1, 2, 3)
    for steps in (4, 8, 16, 16):
        cache.put(Decision(4, (2, 0)), three, SOMETHING, unfound=[0, 2])
        cache.declined(three, cache.now + steps)
        assert cache.get(three, SOMETHING, [1]) == Decision(4, [1])
        assert cache.get(batch(4, 2, 3), SOMETHING, [0, 1]) == Decision(4, [0, 1]), "whichever requests they are"
        assert cache.get(three, SOMETHING, []) is None, "all of them may have a find"
        assert cache.get(batch(1, 2), SOMETHING, [1]) is None
        cache.declined(three, cache.now + 1)
        assert cache.get(three, SOMETHING, [1]) is None


def test_a_decision_for_all_holds_whatever_lookups_find() -> None:
    everyone = Decision(4, (0, 1, 2))
    cache = taken(everyone, batch(1, 2, 3), SOMETHING)
    assert cache.get(batch(1, 2, 3), SOMETHING, [1]) == everyone
    assert stood(cache, batch(1, 2, 3), SOMETHING) == 4


def test_only_decisions_to_draft_are_kept_longer_where_fewer_steps_are_learnt_from() -> None:
    for decision, steps in ((FIRST, 60), (NOBODY, 1)):
        cache = DecisionCache()
        cache.put(decision, batch(1), ALONE, apart=4)
        assert stood(cache, batch(1)) == steps


def test_a_decision_not_to_draft_holds_beside_larger_finds_and_not_beside_smaller_ones() -> None:
    assert stood(taken(NOBODY, batch(1), SHORT), batch(1), SHORT) == 8
    assert standing(taken(NOBODY, batch(1), SHORT), batch(1), ALONE) is None, "without a find a draft may pay"
    assert standing(taken(NOBODY, batch(1), SHORT), batch(1), LONG) == NOBODY
    for more in (SHORT, LONG, situation([NOTHING_FOUND], 0, 200)):
        assert standing(taken(NOBODY, batch(1)), batch(1), more) == NOBODY
    assert standing(taken(NOBODY, batch(1)), batch(1), situation([NOTHING_FOUND], 200)) == NOBODY, "nor does it beside a prompt"
    begins = situation_of([NOTHING_FOUND], 200, begins=True)
    assert standing(taken(NOBODY, batch(1)), batch(1), begins) is None, "but the beginning of an answer is easier to draft"


def test_a_decision_not_to_draft_holds_with_more_unread_tokens_and_not_with_fewer() -> None:
    little, much, more_found = SHORT, SHORT._replace(lacking=64), LONG._replace(lacking=64)
    assert standing(taken(NOBODY, batch(1), little), batch(1), much) == NOBODY
    assert standing(taken(NOBODY, batch(1), little), batch(1), more_found) == NOBODY
    assert standing(taken(NOBODY, batch(1), much), batch(1), little) is None
    assert standing(taken(NOBODY, batch(1), more_found), batch(1), much) is None
    assert standing(taken(FIRST, batch(1), little), batch(1), much) is None


@pytest.mark.parametrize("decision", [NOBODY, FIRST])
def test_a_decision_beside_a_prompt_holds_beside_prompts_of_that_size_for_other_requests(decision: Decision) -> None:
    prompt, longer = situation([NOTHING_FOUND], 200), situation([NOTHING_FOUND], 300)
    cache = taken(decision, batch(1), prompt)
    assert standing(cache, batch(1), ALONE) is None
    assert standing(cache, batch(2), longer) is None
    assert standing(cache, batch(2), prompt) == decision
    assert standing(taken(FIRST, batch(1)), batch(1), prompt) is None


def test_a_decision_for_all_of_a_batch_beside_a_prompt_holds_beside_the_next_prompt() -> None:
    prompt, everyone = situation([NOTHING_FOUND] * 2, 200), Decision(4, (0, 1))
    assert standing(taken(everyone, batch(1, 2), prompt), batch(1, 3), prompt) == everyone
    assert standing(taken(FIRST, batch(1, 2), prompt), batch(1, 3), prompt) is None
    assert standing(taken(NOBODY, batch(1, 2), prompt), batch(1, 3), prompt) == NOBODY
    assert standing(taken(everyone, batch(1, 2), prompt), batch(1, 2), ALONE) is None
