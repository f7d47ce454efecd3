"""Suffix decoding: the automaton against its definition, a scan of the text; and which past answers are kept, and how many."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from paceline import LLM
from paceline.bench.builtin import built_in
from paceline.budget import Budget
from paceline.drafters.suffix import Options, SuffixDrafter
from paceline.kernels.compiled_call import Call
from paceline.kernels.suffixes.automaton import BORDER, LONGEST_MATCH, Bounds, Continuation, SuffixAutomaton
from paceline.models.base import Scores
from paceline.models.embedded import embedded_models
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree

settings.register_profile("still", derandomize=True, deadline=None, max_examples=150, database=None)
settings.load_profile("still")

# few different tokens and long texts: most strings occur several times
TEXTS = st.lists(st.integers(BORDER, 2), min_size=1, max_size=50)
WORDS = st.lists(st.integers(0, 2), max_size=40)
BOUNDS = st.builds(Bounds, st.integers(1, 9), st.integers(1, 5), st.sampled_from([0.5, 1.0, 2.0]), st.just(1.0), st.just(0.1))


def followers(text: list[int], string: list[int]) -> list[int]:
    size = len(string)
    return [text[at + size] for at in range(len(text) - size) if text[at : at + size] == string]


def shares(text: list[int], string: list[int]) -> tuple[dict[int, float], list[int]]:
    """The probability of each next token, and the suffix it comes from: the longest one with a continuation."""
    while string and not followers(text, string):
        string = string[1:]
    if not string:
        return {}, []
    found = followers(text, string)
    return {token: found.count(token) / (len(found) + 1 / len(string)) for token in set(found) - {BORDER}}, string


def likeliest(text: list[int], string: list[int], room: int, bounds: Bounds) -> list[float]:
    """The probabilities of the likeliest paths behind a string."""
    waiting, taken = [(1.0, 0, string)], []
    while waiting and len(taken) <= room:
        waiting.sort(key=lambda one: one[0])
        path, level, said = waiting.pop()
        taken.append(path)
        if level < bounds.depth:
            following, suffix = shares(text, said)
            waiting += [
                (path * share, level + 1, [*suffix, token]) for token, share in following.items() if path * share >= bounds.floor
            ]
    return taken[1:]


def best_score(text: list[int], context: list[int], bounds: Bounds) -> float:
    """The highest expected number of tokens over suffixes of the context that have a continuation."""
    scores = [0.0]
    ends: list[int] = []
    for length in range(min(len(context), LONGEST_MATCH), 0, -1):
        string = context[len(context) - length :]
        found = [at for at in range(len(text) - length + 1) if text[at : at + length] == string]
        # strings with the same end positions are one state, represented by the longest
        if followers(text, string) and found != ends:
            room = min(bounds.nodes, int(bounds.factor * length + bounds.offset))
            scores.append(sum(likeliest(text, string, room, bounds)))
        ends = [at + 1 for at in found]
    return max(scores)


def agrees(found: Continuation, text: list[int], context: list[int], bounds: Bounds) -> None:
    assert found.score == pytest.approx(best_score(text, context, bounds))
    assert len(found.tokens) <= min(bounds.nodes, bounds.factor * found.match + bounds.offset)
    start = context[len(context) - found.match :]
    paths: list[tuple[float, list[int]]] = [(1.0, start)]
    for token, parent, share in zip(found.tokens, found.parents, found.shares, strict=True):
        path, said = paths[parent]
        following, suffix = shares(text, said)
        assert share == pytest.approx(following[token])
        paths.append((path * share, [*suffix, token]))
    assert sum(path for path, _ in paths[1:]) == pytest.approx(found.score)
    assert len(set(zip(found.parents, found.tokens, strict=True))) == len(found.tokens)


@given(WORDS, BOUNDS, st.integers(1, 7))
def test_what_follows_a_texts_own_end_is_what_a_scan_finds(text: list[int], bounds: Bounds, step: int) -> None:
    grown = SuffixAutomaton()
    for at in range(0, len(text), step):
        grown.extend(text[at : at + step])
    agrees(grown.draft(bounds), text, text, bounds)


@given(TEXTS, WORDS, BOUNDS)
def test_what_follows_another_text_is_what_a_scan_finds(text: list[int], context: list[int], bounds: Bounds) -> None:
    grown = SuffixAutomaton()
    grown.extend(text)
    agrees(grown.draft(bounds, context), text, context, bounds)


@pytest.mark.parametrize("size", [3, 40, 4000])
def test_an_automaton_interrupted_while_it_grows_can_be_grown_on(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """A signal during compiled code is raised when it returns."""
    tokens, call, interrupted = [at * at % 7 for at in range(size)], Call.__call__, []

    def interrupt(self: Call) -> int:
        found = call(self)
        if self._compiled.name == "suffixes.automaton_kernel.extend":
            interrupted.append(self)
            raise KeyboardInterrupt
        return found

    automaton, whole = SuffixAutomaton(), SuffixAutomaton()
    with monkeypatch.context() as patched:
        patched.setattr(Call, "__call__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            automaton.extend(tokens)
    assert interrupted
    assert automaton.tokens == size
    automaton.extend(tokens)
    whole.extend(tokens + tokens)
    bounds = Bounds(8, 4, 1.0, 1.0, 0.01)
    assert automaton.draft(bounds) == whole.draft(bounds)


def test_a_text_beyond_what_is_counted_is_matched_by_its_end() -> None:
    text = [*range(100), *range(100)]
    bounds = Bounds(8, 8, 1.0, 0.0, 0.1)
    grown = SuffixAutomaton()
    grown.extend([*text, *range(50)])
    found = grown.draft(bounds)
    assert found.tokens == list(range(50, 58))
    assert found.match == LONGEST_MATCH
    assert found.shares == pytest.approx([2 / (2 + 1 / (LONGEST_MATCH + at)) for at in range(8)])


def test_a_text_that_repeats_itself_is_grown_at_the_same_cost() -> None:
    """Counts bytes instead of measuring time."""
    grown = SuffixAutomaton()
    grown.extend([7] * 20_000)
    assert grown.held_bytes < 200 * 20_000
    assert grown.draft(Bounds(16, 16, 1.0, 0.0, 0.1)).tokens == [7] * 16


def sequence(key: int, prompt: list[int], answer: list[int] | None = None, tenant: str = "") -> Sequence:
    made = Sequence(key, tuple(prompt), SamplingParams(), seed=0, tenant=tenant)
    made.commit(tuple(answer or ()), ("",) * len(answer or ()))
    return made


def proposed(drafter: SuffixDrafter, owner: Sequence, budget: Budget | None = None) -> DraftTree:
    return drafter.propose([owner], [budget or drafter.budget])[0]


def finished(drafter: SuffixDrafter, owner: Sequence, tree: DraftTree | None = None) -> None:
    owner.finish_reason = "stop"
    drafter.observe([owner], [tree or DraftTree.root(owner.root)], [Verdict()], None)  # pyright: ignore[reportArgumentType]
    drafter.release(owner.key)


@given(WORDS.filter(bool), st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=6))
def test_state_is_rebuilt_from_the_tokens_alone(prompt: list[int], steps: list[list[int]]) -> None:
    drafter, owner = SuffixDrafter(Options()), sequence(0, prompt)
    for tokens in [[], *steps]:
        owner.commit(tuple(tokens), ("",) * len(tokens))
        tree = proposed(drafter, owner)
        assert tree == proposed(SuffixDrafter(Options()), owner)
    drafter.release(0)
    assert proposed(drafter, owner) == tree


@given(WORDS.filter(bool), st.integers(1, 40), WORDS)
def test_what_is_cut_off_is_forgotten(text: list[int], kept: int, other: list[int]) -> None:
    drafter = SuffixDrafter(Options())
    proposed(drafter, sequence(0, text))
    drafter.truncate(0, kept)
    branch = sequence(0, [*text[:kept], *other])
    assert proposed(drafter, branch) == proposed(SuffixDrafter(Options()), branch)


@given(WORDS.filter(bool), st.integers(0, 9), st.integers(0, 6), st.sampled_from([0.0, 0.3, 0.6]))
def test_a_draft_stays_within_its_budget(text: list[int], nodes: int, depth: int, floor: float) -> None:
    tree = proposed(SuffixDrafter(Options()), sequence(0, text), Budget(nodes, depth, floor))
    assert len(tree) - 1 <= nodes
    assert max(tree.depth) <= depth
    assert all(confidence >= floor for confidence in tree.confidences)


def test_a_step_reads_what_is_new_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    extend = SuffixAutomaton.extend
    drafter, owner = SuffixDrafter(Options()), sequence(0, list(range(3000)))
    monkeypatch.setattr(SuffixAutomaton, "extend", lambda self, tokens: (read.append(len(tokens)), extend(self, tokens)))
    proposed(drafter, owner)
    owner.commit((1, 2, 3), ("",) * 3)
    proposed(drafter, owner)
    assert read == [3000, 3]


def test_past_answers_draft_and_longer_matches_are_held_likelier() -> None:
    drafter = SuffixDrafter(Options())
    finished(drafter, sequence(0, [90], [1, 2, 3, 4, 5, 6]))
    short, long = proposed(drafter, sequence(1, [80, 3])), proposed(drafter, sequence(2, [80, 1, 2, 3]))
    assert short.tokens[1:] == (4, 5, 6)
    assert long.confidences[1] > short.confidences[1]


def test_an_answers_beginning_is_found_by_the_end_of_its_prompt() -> None:
    drafter = SuffixDrafter(Options())
    finished(drafter, sequence(0, [*range(50, 60), 7, 8], [1, 2, 3]))
    assert proposed(drafter, sequence(1, [30, 7, 8])).tokens[1:] == (1, 2, 3)
    assert len(proposed(drafter, sequence(2, [30, 51, 52]))) == 1, "the rest of the prompt is not kept"


def test_what_one_tenant_was_answered_is_never_shown_to_another() -> None:
    drafter = SuffixDrafter(Options())
    finished(drafter, sequence(0, [90], [1, 2, 3, 4], tenant="one"))
    assert len(proposed(drafter, sequence(1, [80, 1, 2], tenant="two"))) == 1
    assert len(proposed(drafter, sequence(2, [80, 1, 2]))) == 1
    assert proposed(drafter, sequence(3, [80, 1, 2], tenant="one")).tokens[1:] == (3, 4)


def test_what_was_drafted_in_vain_is_not_remembered() -> None:
    drafter = SuffixDrafter(Options())
    owner = sequence(0, [90], [1, 2, 3])
    finished(drafter, owner, DraftTree.chain(3, [66, 67], "suffix"))
    assert len(proposed(drafter, sequence(1, [80, 66]))) == 1
    assert 66 not in proposed(drafter, sequence(2, [80, 2, 3])).tokens


def test_an_answer_still_being_written_is_not_yet_a_past_one() -> None:
    drafter = SuffixDrafter(Options())
    owner = sequence(0, [90], [1, 2, 3])
    drafter.observe([owner], [DraftTree.root(3)], [Verdict()], None)  # pyright: ignore[reportArgumentType]
    drafter.release(0)
    assert len(proposed(drafter, sequence(1, [80, 1, 2]))) == 1


def test_past_answers_are_bounded_and_the_oldest_are_forgotten_first() -> None:
    drafter = SuffixDrafter(Options(past=400))
    held = 0
    for number in range(60):
        first = 1000 * number
        finished(drafter, sequence(number, [5], list(range(first, first + 30))))
        generations = drafter._past[""].generations
        assert sum(generation.tokens for generation in generations) <= 400
        size = sum(generation.held_bytes for generation in generations)
        held = max(held, size) if number < 30 else held
        assert size <= held or number < 30
    assert len(proposed(drafter, sequence(100, [0, 1]))) == 1
    assert len(proposed(drafter, sequence(101, [59_000, 59_001]))) > 1


def test_an_answer_longer_than_what_is_kept_leaves_its_end() -> None:
    drafter = SuffixDrafter(Options(past=20))
    finished(drafter, sequence(0, [5], list(range(100, 200))))
    assert len(proposed(drafter, sequence(1, [150]))) == 1
    assert proposed(drafter, sequence(2, [195])).tokens[1:] == (196, 197, 198, 199)


@pytest.mark.parametrize("past", [0, 1, 2, 3])
def test_a_past_without_room_holds_nothing(past: int) -> None:
    drafter = SuffixDrafter(Options(past=past))
    for number in range(5):
        finished(drafter, sequence(number, [90], [1, 2, 3, 4]))
    assert len(proposed(drafter, sequence(9, [80, 1, 2]))) == 1


def test_the_tenant_answered_longest_ago_makes_room() -> None:
    drafter = SuffixDrafter(Options(tenants=2))
    for number, tenant in enumerate(("one", "two", "one", "three")):
        finished(drafter, sequence(number, [90], [1, 2, 3, 4], tenant=tenant))
    found = {tenant: len(proposed(drafter, sequence(9, [1, 2], tenant=tenant))) > 1 for tenant in ("one", "two", "three")}
    assert found == {"one": True, "two": False, "three": True}


def test_of_this_request_and_past_ones_the_better_drafts() -> None:
    drafter = SuffixDrafter(Options())
    finished(drafter, sequence(0, [90], [1, 2, 3, 4, 5]))
    ours = sequence(1, [9, 8, 1, 2, 3, 6, 6, 6, 9, 8, 1, 2, 3])
    assert proposed(drafter, ours).tokens[1] == 6
    theirs = sequence(2, [70, 3, 6, 6, 6, 1, 2, 3])
    assert proposed(drafter, theirs).tokens[1] == 4


@pytest.mark.skipif(not embedded_models(), reason="the embedded weights are not part of this checkout")
def test_on_a_stream_of_similar_requests_it_drafts_better_than_the_request_alone_can() -> None:
    asked = built_in("e2e")[0]
    llm = LLM(draft="ngram", policy="fixed")

    def tau(draft: str) -> float:
        llm.use(draft)
        counts = [llm.generate(prompt, SamplingParams(max_tokens=96))[0].speculation for prompt in asked]
        return sum(count.emitted_tokens for count in counts) / sum(count.steps for count in counts)

    assert tau("suffix") > 1.2 * tau("ngram")


def test_forgetting_clears_what_past_answers_taught() -> None:
    drafter = SuffixDrafter(Options())
    told = Sequence(0, (1, 2, 3), SamplingParams(), 0)
    told.commit((4, 5, 6, 7, 8), ("",) * 5)
    told.finish_reason = "length"
    drafter.observe([told], [DraftTree.root(3)], [Verdict()], Scores(torch.zeros(1, 9)))
    drafter.release(0)
    assert drafter._past
    drafter.forget()
    assert not drafter._past


def test_a_state_that_cannot_be_copied_does_not_stay_with_a_kept_text() -> None:
    drafter, one = SuffixDrafter(Options(past=0)), Sequence(0, (1, 2, 3, 1, 2), SamplingParams(), 0)
    drafter.propose([one], [drafter.budget])
    assert drafter.sequence_bytes
    drafter.settle(0)
    assert not drafter.sequence_bytes
