"""Drafts from a reference that is right, edited, wrong or moved; and the state stored, released and read for it."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies as st

from following import proposed, request, rows, step, steps, tau
from paceline import LLM, SamplingParams
from paceline.budget import Budget
from paceline.drafters.reference import Options, ReferenceDrafter, _Pointer, build
from paceline.engine.engine import RequestError
from paceline.lookups import alignment
from paceline.lookups.alignment import Alignment, Reference
from paceline.spec import SpecError
from tiny import save_tiny

PROMPT = [900, 901, 902]
EOS = 0
VOCABULARY = 800


def text(size: int, stream: Random) -> list[int]:
    return [stream.randrange(1, VOCABULARY) for _ in range(size)]


def edited(tokens: list[int], edits: int, stream: Random) -> list[int]:
    """Replaces, removes or inserts tokens or pairs of tokens, `edits` times."""
    tokens = list(tokens)
    for _ in range(edits):
        at = stream.randrange(1, len(tokens) - 2)
        taken, put = stream.choice([(1, 1), (1, 2), (2, 1), (0, 1), (0, 2), (1, 0), (2, 0)])
        tokens[at : at + taken] = text(put, stream)
    return tokens


def test_the_beginning_of_the_reference_is_drafted_without_any_match() -> None:
    tree = proposed(ReferenceDrafter(Options()), request(PROMPT, range(1, 40)))
    assert tree.tokens == (902, 1)
    assert {*tree.sources[1:]} == {"reference"}


def test_drafts_of_a_reference_that_is_right_grow_to_their_full_length_and_end_with_it() -> None:
    answer = [*range(1, 60), EOS]
    taken = steps(ReferenceDrafter(Options()), request(PROMPT, answer[:-1]), answer)
    assert [len(tree) - 1 for tree, _ in taken] == [1, 16, 16, 16, 6]
    assert [emitted for _, emitted in taken] == [2, 17, 17, 17, 7], "the end of the answer costs no extra row"
    sizes = [len(tree) - 1 for tree, _ in steps(ReferenceDrafter(Options(depth=5)), request(PROMPT, answer[:-1]), answer)]
    assert max(sizes) == 5


def test_confidence_grows_with_what_has_matched() -> None:
    drafter, owner = ReferenceDrafter(Options()), request(PROMPT, range(1, 60))
    first = [step(drafter, owner, range(1, 60))[0].confidences[1] for _ in range(3)]
    assert first == sorted(set(first))
    assert first[-1] > 0.9


@pytest.mark.parametrize("edits", [1, 2, 3, 4])
def test_a_reference_that_is_right_but_for_a_few_edits_keeps_most_of_its_worth(edits: int) -> None:
    taken = []
    for seed in range(40):
        stream = Random(100 * edits + seed)
        answer = text(60, stream)
        taken += steps(ReferenceDrafter(Options()), request(PROMPT, edited(answer, edits, stream)), [*answer, EOS])
    assert tau(taken) > 3.5
    assert tau(taken) > 61 / (4.5 + 2.2 * edits), "an edit costs about two steps"


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ([*range(1, 20), 300, *range(21, 60)], [*range(1, 20), 400, *range(21, 60)]),
        ([*range(1, 20), *range(21, 60)], [*range(1, 20), 400, 401, *range(21, 60)]),
        ([*range(1, 20), 300, 301, *range(21, 60)], [*range(1, 20), *range(21, 60)]),
        ([300, *range(2, 60)], [400, *range(2, 60)]),
    ],
    ids=["replaced", "put in", "left out", "another first token"],
)
def test_drafting_resumes_behind_an_edit_of_the_reference(reference: list[int], answer: list[int]) -> None:
    taken = steps(ReferenceDrafter(Options()), request(PROMPT, reference), answer)
    assert len(taken) <= 8


def test_drafting_resumes_where_a_block_of_the_reference_was_moved() -> None:
    reference = [*range(1, 40), *range(100, 140)]
    taken = steps(ReferenceDrafter(Options()), request(PROMPT, reference), [*range(100, 140), *range(1, 40)])
    assert tau(taken) > 4


def test_an_empty_text_is_not_found_in_a_reference() -> None:
    assert Reference([1, 2, 3]).find([], 0) is None


def test_of_equal_matches_the_nearest_ahead_is_followed() -> None:
    reference = Reference([5, 1, 9, 9, 5, 2, 9, 9, 9, 5, 3])
    assert reference.find([5], 0) == (1, 1, True)
    assert reference.find([5], 2) == (5, 1, True)
    assert reference.find([5], 11) == (10, 1, False)
    assert reference.find([9, 9, 5], 0) == (5, 3, True)
    assert reference.find([9, 9, 9, 5], 0) == (10, 4, True), "but a longer match comes first"
    assert reference.find([3], 0) is None, "nothing follows it"
    assert reference.find([5], 0, shortest=3) is None


@given(st.lists(st.integers(1, 4), min_size=1, max_size=60), st.lists(st.integers(1, 4), min_size=1, max_size=8), st.data())
@settings(derandomize=True, deadline=None, max_examples=150, database=None)
def test_an_index_finds_what_a_scan_finds(tokens: list[int], ending: list[int], data: st.DataObject) -> None:
    edit = data.draw(st.integers(0, len(tokens)))
    shortest = data.draw(st.sampled_from([1, 3]))
    scanned = Reference(tokens).find(ending, edit, shortest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "_SCANNED", 0)
        indexed = Reference(tokens).find(ending, edit, shortest)
    assert scanned == indexed
    if scanned is not None:
        place, length, _ = scanned
        assert tokens[place - length : place] == ending[-length:]
        assert place < len(tokens)


def test_a_wrong_reference_soon_costs_no_rows_and_can_come_back() -> None:
    stream = Random(1)
    reference, other = text(300, stream), text(200, stream)
    drafter, owner = ReferenceDrafter(Options()), request(PROMPT, reference)
    wrong = steps(drafter, owner, other)
    assert rows(wrong) < 12, "a few tokens in common by chance do not justify a draft"
    assert rows(wrong[20:]) <= 4
    right = steps(drafter, owner, [*other, *reference[40:140]])
    assert tau(right) > 5


def test_a_wrong_reference_is_not_even_asked_but_now_and_then() -> None:
    stream = Random(1)
    reference, other = text(300, stream), text(80, stream)
    drafter, owner = ReferenceDrafter(Options()), request(PROMPT, reference)
    steps(drafter, owner, other[:40])
    asked = []
    for token in other[40:]:
        owner.commit((token,), ("",))
        asked.append(drafter.suits(owner))
        if asked[-1]:
            proposed(drafter, owner)
    assert sum(asked) == 10
    assert tau(steps(drafter, owner, [*other, *reference[40:140]])) > 5, "but it is followed again"


def test_a_reference_that_was_right_and_turns_wrong_is_given_up() -> None:
    stream = Random(2)
    reference, other = text(300, stream), text(100, stream)
    drafter, owner = ReferenceDrafter(Options()), request(PROMPT, reference)
    steps(drafter, owner, reference[:100])
    assert rows(steps(drafter, owner, [*reference[:100], *other])) < 3 * 16


def test_drafting_begins_in_the_reference_where_the_prompt_ends() -> None:
    reference = [*range(1, 60)]
    tree = proposed(ReferenceDrafter(Options()), request([900, 20, 21, 22], reference))
    assert tree.tokens[1:4] == (23, 24, 25)


def test_without_a_reference_the_prompt_serves_as_one() -> None:
    drafter = ReferenceDrafter(Options())
    assert len(proposed(drafter, request([1, 2, 3, 4], key=0))) == 1, "the prompt's beginning is not drafted"
    assert proposed(drafter, request([1, 2, 3, 4, 5, 1, 2, 3], key=1)).tokens[1:3] == (4, 5)
    assert len(proposed(drafter, request([1], key=2))) == 1
    owner = request([*range(1, 30), 100], key=3)
    assert tau(steps(drafter, owner, [200, *range(5, 28)])) > 3


def test_sequences_beside_each_other_have_a_pointer_each() -> None:
    drafter = ReferenceDrafter(Options(), Reference([*range(1, 60)]))
    one, two = request(PROMPT, key=1), request(PROMPT, range(100, 160), key=2)
    one.commit(tuple(range(1, 21)), ("",) * 20)
    two.commit(tuple(range(100, 110)), ("",) * 10)
    first, second = drafter.propose([one, two], [drafter.budget] * 2)
    assert first.tokens[1] == 21
    assert second.tokens[1] == 110
    assert [first, second] == [proposed(drafter, one), proposed(drafter, two)]


@given(st.integers(0, 1000), st.lists(st.integers(1, 9), max_size=12), st.booleans())
@settings(derandomize=True, deadline=None, max_examples=60, database=None)
def test_a_released_or_truncated_sequence_is_rebuilt_from_its_tokens(seed: int, committed: list[int], cut: bool) -> None:
    stream = Random(seed)
    reference = text(60, stream)
    answer = edited(reference, 6, stream)
    drafter, owner = ReferenceDrafter(Options()), request(PROMPT, reference)
    at = 0
    for size in committed:
        tokens = answer[at : at + size]
        owner.commit(tuple(tokens), ("",) * len(tokens))
        at += len(tokens)
        before = proposed(drafter, owner)
        # truncating drops state too, and the remaining tokens give the same draft
        drafter.truncate(owner.key, len(owner.tokens) - 1) if cut else drafter.release(owner.key)
        assert proposed(drafter, owner) == before
        assert proposed(ReferenceDrafter(Options()), owner) == before


CUTS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30), st.booleans(), st.booleans()), min_size=1, max_size=12)


@given(st.integers(0, 1000), CUTS)
@settings(derandomize=True, deadline=None, max_examples=100, database=None)
def test_a_text_that_is_cut_back_time_and_again_is_that_of_a_fresh_drafter(
    seed: int, cuts: list[tuple[int, int, bool, bool]]
) -> None:
    """Whether or not it follows the reference, and whether or not it drafts between two cuts."""
    stream = Random(seed)
    reference = text(300, stream)
    drafter, owner = ReferenceDrafter(Options()), request(PROMPT, reference)
    for back, grown, right, looked in cuts:
        at = stream.randrange(250)
        owner.commit(tuple(reference[at : at + grown] if right else text(grown, stream)), ())
        if looked:
            proposed(drafter, owner)
        owner.take_back(max(len(owner.tokens) - back, len(PROMPT)))
        drafter.truncate(owner.key, len(owner.tokens))
        if looked:
            fresh = ReferenceDrafter(Options())
            assert proposed(drafter, owner) == proposed(fresh, owner)
            mine, other = vars(drafter._states[0].now), vars(fresh._states[0].now)
            assert {**mine, "reference": None} == {**other, "reference": None}


@given(st.integers(0, 400), st.builds(Budget, st.integers(0, 20), st.integers(0, 20), st.sampled_from([0.0, 0.5, 0.9])))
@settings(derandomize=True, deadline=None, max_examples=80, database=None)
def test_a_draft_keeps_to_its_budget(seed: int, budget: Budget) -> None:
    stream = Random(seed)
    reference = text(30, stream)
    owner = request(PROMPT, reference, stop_ids=(7, 8, 9))
    generated = reference[: stream.randrange(31)]
    owner.commit(tuple(generated), ("",) * len(generated))
    tree = proposed(ReferenceDrafter(Options()), owner, budget)
    assert tree.pruned(budget) is tree
    if budget.floor:
        parents = {tree.parents[node] for node in range(1, len(tree))}
        assert all(tree.confidences[node] >= budget.floor for node in parents if node)


def test_held_bytes_are_bounded_by_the_reference_and_released_with_the_request() -> None:
    drafter = ReferenceDrafter(Options())
    owner = request(PROMPT, text(500, Random(3)))
    steps(drafter, owner, text(1000, Random(4)))
    assert 0 < drafter.sequence_bytes < 500 * 24 + 1000
    drafter.release(owner.key)
    drafter.release(owner.key)
    assert drafter.sequence_bytes == 0


def test_a_long_file_is_indexed_before_anyone_drafts_from_it(tmp_path: Path) -> None:
    file, around = tmp_path / "some.txt", SimpleNamespace(target=SimpleNamespace(vocab_size=256))
    around.tokenizer = SimpleNamespace(encode=lambda text, special: [*text.encode()])
    for size, indexed in ((500, False), (2000, True)):
        file.write_text("".join(chr(97 + token % 26) for token in text(size, Random(5))))
        shared = build(Options(file=str(file)), around)._shared  # pyright: ignore[reportArgumentType]
        assert shared is not None
        held = shared.held_bytes
        assert (held > 0) is indexed
        for ending in ([97], [97, 98, 99]):
            shared.find(ending, 0)
        assert shared.held_bytes == held


def test_following_reads_as_little_of_a_long_reference_as_of_a_short_one() -> None:
    """Counts reads instead of measuring time: reference tokens read in one step behind an edit, once the index is built."""

    class Counting(tuple[int, ...]):
        read = 0

        def __getitem__(self, place):
            found = super().__getitem__(place)
            type(self).read += len(found) if isinstance(place, slice) else 1
            return found

    def reads(size: int) -> int:
        reference = Reference(Counting(token % 50 for token in range(size)))
        followed = Alignment(reference, PROMPT)
        followed.follow([*PROMPT, 0, 1, 2, 700])
        Counting.read = 0
        followed.follow([*PROMPT, 0, 1, 2, 700, 4])
        return Counting.read

    assert reads(50_000) == reads(2_000) < 80


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("reference"), 3)


@pytest.fixture
def llm(folder: Path) -> LLM:
    return LLM(str(folder), "reference", policy="fixed")


PARAMS = SamplingParams(max_tokens=48, temperature=1.0, seed=3, ignore_eos=True)


def test_a_request_brings_its_reference_as_text_or_as_ids(llm: LLM) -> None:
    plain = llm.generate("the thin", PARAMS)[0]
    ids = llm.generate("the thin", PARAMS, reference=plain.token_ids)[0]
    assert ids.token_ids == plain.token_ids
    assert ids.speculation.tau > 8 > 2 > plain.speculation.tau
    both = llm.generate(["the thin", "in"], PARAMS, reference=[plain.token_ids, plain.text])
    assert both[0].token_ids == plain.token_ids
    assert both[0].speculation.tau == ids.speculation.tau
    streamed = list(llm.stream("the thin", PARAMS, reference=plain.token_ids))
    assert len(streamed) == ids.speculation.steps


def test_one_reference_serves_all_prompts_and_an_empty_one_none(llm: LLM) -> None:
    plain = llm.generate("the thin", PARAMS)[0]
    two = llm.generate(["the thin", "the thin"], PARAMS, reference=plain.token_ids)
    assert all(one.speculation.tau > 8 for one in two)
    for nothing in ("", [], None):
        assert llm.generate("the thin", PARAMS, reference=nothing)[0].token_ids == plain.token_ids


def test_invalid_references_are_refused_in_a_sentence(llm: LLM) -> None:
    size = llm.target.vocab_size
    with pytest.raises(RequestError, match=f"^the reference holds a token id outside the vocabulary of {size}$"):
        llm.generate("the thin", PARAMS, reference=[3, size])
    with pytest.raises(RequestError, match=r"^1 prompts came with 2 references$"):
        llm.generate("the thin", PARAMS, reference=["a", "b"])


@pytest.fixture(scope="module")
def embedded() -> LLM:
    """The embedded model: its text survives a file round trip, and its tokens include the space before a word."""
    return LLM(None, "reference", policy="fixed")


@pytest.mark.parametrize("prompt", ["once upon a time", "once upon a time "])
def test_a_reference_reads_as_it_would_behind_the_prompt(embedded: LLM, prompt: str) -> None:
    spaced, alone = (embedded.tokenizer.encode(text, add_special=False) for text in (" there was", "there was"))
    assert embedded._reference("there was", prompt) == (alone if prompt.endswith(" ") else spaced)
    assert embedded._reference(" there was", prompt) == spaced
    assert embedded._reference("there was", embedded.encode(prompt)) == alone


def test_a_file_is_the_reference_of_requests_that_bring_none(embedded: LLM, tmp_path: Path) -> None:
    prompt, file = "Once upon a time there was a little boy who had a red kite. One day", tmp_path / "expected.txt"
    params = SamplingParams(max_tokens=64, ignore_eos=True)
    plain = embedded.generate(prompt, params, reference=[1])[0]
    file.write_text(plain.text, encoding="utf-8")
    embedded.use(f'reference:"{file}"')
    drafted = embedded.generate(prompt, params)[0]
    assert drafted.token_ids == plain.token_ids
    assert drafted.speculation.tau > 8 > 4 > plain.speculation.tau
    embedded.engine.forget()
    assert embedded.engine.speculative.drafter.sequence_bytes == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file"),
        (b"caf\xe9", "not valid UTF-8 at byte 3"),
        (b" \n", "holds no text"),
        (b"x" * ((16 << 20) + 1), "larger than 16 MiB"),
    ],
    ids=["missing", "not UTF-8", "empty", "too large"],
)
@pytest.mark.parametrize("method", ["unigram", "bigram", "reference"])
def test_a_file_that_cannot_be_used_is_refused_in_a_sentence(
    folder: Path, tmp_path: Path, method: str, content: bytes | None, message: str
) -> None:
    file = tmp_path / "some.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SpecError, match=message) as caught:
        LLM(str(folder), f'{method}:"{file}"')
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_text_that_is_cut_again_and_again_is_not_read_from_its_beginning() -> None:
    """As in a cascade, where drafts are read and cut in every step."""
    text = list(range(1, 200))
    pointer = _Pointer(Alignment(Reference(text), ()))
    pointer.follow(text[:100])
    pointer.follow(text)
    assert pointer.cut(150)
    pointer.follow([*text[:150], 7, 7, 7])
    assert pointer.cut(150)
