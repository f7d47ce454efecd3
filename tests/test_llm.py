"""The `LLM` class: batches, concurrent streams, requests that fail or are abandoned."""

from __future__ import annotations

import ast
import gc
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from paceline import LLM, PacelineError, SamplingParams, params
from paceline.display import summary
from paceline.engine import llm as llm_module
from paceline.engine.engine import Progress, RequestError
from paceline.models.embedded import DEFAULT, WEIGHTS_FOLDER
from paceline.sampling import LogitsError
from paceline.spec import SpecError
from paceline.tree import DraftTree
from tiny import save_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    save_tiny(made / "draft", 3, disturbed=0.3)
    return save_tiny(made / "target", 3)


@pytest.fixture
def llm(folder: Path) -> LLM:
    return LLM(str(folder), "ngram:min=1")


PARAMS = SamplingParams(max_tokens=12, temperature=1.0, seed=4)


def idle(llm: LLM) -> bool:
    """No state of any request is left."""
    engine = llm.engine
    return not engine.has_work and engine.speculative.cache.held_bytes == 0 and not llm._inboxes


def test_prompts_may_be_text_or_ids_and_answers_keep_their_order(llm: LLM) -> None:
    ids = llm.encode("the thin")
    together = llm.generate(["the thin", ids, "in"], [PARAMS, PARAMS, PARAMS.model_copy(update={"seed": 5})])
    assert together[0].token_ids == together[1].token_ids
    assert llm.generate(ids, PARAMS)[0].token_ids == together[0].token_ids
    assert together[2].seed == 5
    assert together[0].prompt_tokens == len(ids)
    assert idle(llm)


def test_a_seed_is_drawn_and_reported_where_none_was_given(llm: LLM) -> None:
    first = llm.generate("the", PARAMS.model_copy(update={"seed": None}))[0]
    again = llm.generate("the", PARAMS.model_copy(update={"seed": first.seed}))[0]
    assert first.token_ids == again.token_ids


def test_streams_beside_each_other_lose_nothing(llm: LLM) -> None:
    alone = [llm.generate(prompt, PARAMS)[0].text for prompt in ("the", "in")]
    one, two = llm.stream("the", PARAMS), llm.stream("in", PARAMS)
    first, second = [next(one)], [next(two)]
    between = llm.generate("the", PARAMS)[0].text
    second += list(two)
    first += list(one)
    assert [first[-1].text, second[-1].text] == alone
    assert between == alone[0]
    assert [len(p.text) for p in first] == sorted(len(p.text) for p in first)
    assert idle(llm)


def test_an_answer_says_what_it_was_admitted_under(folder: Path) -> None:
    llm = LLM(str(folder), "ngram:min=1", verify="typical", lossy=True)
    stream = llm.stream("the thin", PARAMS)
    last = next(stream)
    llm.use("ngram:min=1", verify="match")
    assert llm.completed(last.sequence, last.text).keeps == "nothing"
    assert llm.generate("the thin", PARAMS)[0].keeps == "text"


def test_a_stream_that_is_left_ends_its_request(llm: LLM) -> None:
    stream = llm.stream("the", PARAMS)
    sequence = next(stream).sequence
    stream.close()
    assert sequence.finish_reason == "abort"
    assert idle(llm)


def test_a_stream_that_the_collector_closes_in_the_middle_of_a_step_disturbs_nobody(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Holder:
        """Holds a stream, in a reference cycle that only the garbage collector frees."""

    alone, score = llm.generate("in", PARAMS)[0].text, llm.target.score
    holder = Holder()
    holder.stream, holder.itself = llm.stream("the thin", PARAMS), holder  # pyright: ignore[reportAttributeAccessIssue]
    next(holder.stream)  # pyright: ignore[reportAttributeAccessIssue]
    gc.disable()
    del holder

    def collecting(step, cache, taps=()):
        gc.collect()
        return score(step, cache, taps)

    monkeypatch.setattr(llm.target, "score", collecting)
    try:
        assert llm.generate("in", PARAMS)[0].text == alone
    finally:
        gc.enable()
    assert idle(llm)


def test_a_bad_prompt_among_good_ones_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(RequestError, match="vocabulary"):
        llm.generate(["the", [10**6]], PARAMS)
    with pytest.raises(RequestError, match="empty"):
        llm.generate([[]], PARAMS)
    with pytest.raises(RequestError, match="2 prompts came with 1"):
        llm.generate(["the", "in"], [PARAMS])
    assert idle(llm)


@pytest.mark.parametrize(
    "prompt", [b"hi", [b"hi"], bytearray(b"hi"), None, 3, ["the", None], [[1, 2.5]], [["the"]], {"text": "the"}]
)
def test_what_is_neither_text_nor_token_ids_is_no_prompt(llm: LLM, prompt: Any) -> None:
    with pytest.raises(RequestError, match="a prompt is a text or a list of token ids, not"):
        llm.generate(prompt, PARAMS)
    if not isinstance(prompt, list | dict):
        with pytest.raises(RequestError, match="a prompt is a text or a list of token ids, not"):
            next(llm.stream(prompt, PARAMS))
        if prompt is not None:
            with pytest.raises(RequestError, match="a reference is a text or a list of token ids, not"):
                llm.generate("the", PARAMS, reference=prompt)
    assert idle(llm)


def test_token_ids_may_come_from_any_library(llm: LLM) -> None:
    ids = llm.encode("the thin")
    expected = llm.generate(ids, PARAMS)[0].token_ids
    for given in (tuple(ids), np.array(ids), list(np.array(ids))):
        assert llm.generate(given, PARAMS)[0].token_ids == expected  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("params", [{"max_tokens": 2}, [{"max_tokens": 2}], "greedy", 5])
def test_what_is_no_sampling_params_is_refused_by_its_type(llm: LLM, params: Any) -> None:
    with pytest.raises(RequestError, match="params are a SamplingParams, or a list of one for each prompt, not"):
        llm.generate("the", params)
    with pytest.raises(RequestError, match="params are a SamplingParams"):
        next(llm.stream("the", params))
    assert idle(llm)


def test_without_parameters_an_answer_is_greedy(llm: LLM) -> None:
    greedy = llm.generate("the", SamplingParams())[0].token_ids
    assert [llm.generate("the", none)[0].token_ids for none in (None, [], ())] == [greedy] * 3


def test_a_single_stop_is_a_text() -> None:
    assert SamplingParams(stop="abc") == SamplingParams(stop=("abc",))  # pyright: ignore[reportArgumentType]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # pyright: ignore[reportArgumentType]
    for stop in ("", ["a", ""], 3):
        with pytest.raises(ValidationError):
            SamplingParams(stop=stop)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("size", ["8", 8.0, None, 0])
@pytest.mark.parametrize("name", ["batch", "prefill_chunk", "cache_tokens", "shortest_prefix"])
def test_a_size_that_is_no_whole_number_from_1_is_refused_by_name(folder: Path, name: str, size: Any) -> None:
    if (name, size) == ("prefill_chunk", None):
        assert LLM(str(folder), "none", prefill_chunk=None).engine.limits.chunk > 0
        return
    with pytest.raises(ValueError, match=name):
        LLM(str(folder), "none", **{name: size})


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"draft": None}, "a spec is a text such as 'ngram' or 'none', not None"),
        ({"draft": ""}, "a spec is empty: write what drafts, such as 'ngram', or 'none' for nothing"),
        (
            {"draft": "ngram+auto"},
            "'auto' stands alone, or names a smaller model as in 'auto:PATH'; for this model it is 'ngram\\+recycle'",
        ),
        ({"extra_drafters": ("auto",)}, "'auto' stands alone"),
        ({"verify": None}, "a spec is a text"),
        ({"verify": ""}, "the verifier is an empty text"),
        ({"policy": 3}, "a spec is a text"),
        ({"policy": ""}, "the policy is an empty text: leave it out, or choose from fixed, adaptive, bass, confidence"),
    ],
)
def test_methods_that_cannot_be_read_are_refused_in_a_sentence(folder: Path, named: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        LLM(str(folder), **{"draft": "none", **named})


def test_another_drafter_ends_what_was_in_flight(llm: LLM) -> None:
    stream = llm.stream("the", PARAMS)
    first = next(stream)
    llm.use("none")
    assert first.sequence.finish_reason == "abort"
    last = list(stream)[-1]
    assert (last.sequence, last.finished, last.error) == (first.sequence, True, None)
    assert last.text == llm.tokenizer.decode(first.sequence.generated)
    assert llm.draft_name == "none"
    assert idle(llm)


def test_closing_a_stream_from_before_a_change_of_drafter_ends_no_later_stream(llm: LLM) -> None:
    before = llm.stream("the", PARAMS)
    next(before)
    llm.use("none")
    # the first stream of the new engine, as `before` was of the old one
    after = llm.stream("in", PARAMS)
    next(after)
    before.close()
    text = list(after)[-1].text
    assert text == llm.generate("in", PARAMS)[0].text
    assert idle(llm)


def test_an_answer_that_another_drafter_ended_says_so(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another thread changed the drafter."""
    engine, steps = llm.engine, []
    step = engine.step

    def once_then_another():
        steps.append(step())
        llm.use("none")
        return steps[-1]

    monkeypatch.setattr(engine, "step", once_then_another)
    answer = llm.generate("the", PARAMS)[0]
    assert answer.finish_reason == "abort"
    assert len(steps) == 1
    assert 0 < len(answer.token_ids) < PARAMS.max_tokens
    assert answer.text == llm.tokenizer.decode(answer.token_ids)
    assert idle(llm)


@pytest.mark.parametrize("draft", ["ngram:min=1", "model"])
def test_threads_get_the_texts_that_they_get_alone(folder: Path, draft: str) -> None:
    llm = LLM(str(folder), draft if draft != "model" else f"model:{folder.parent / 'draft'}")
    work = [[(f"{word} {number}", PARAMS.model_copy(update={"seed": number})) for number in range(8)] for word in ("the", "in")]
    alone = [[llm.generate(*one)[0].token_ids for one in mine] for mine in work]

    def several(mine: list[tuple[str, SamplingParams]]) -> list[list[int]]:
        answers = [llm.generate(*one)[0].token_ids for one in mine[:3]]
        answers += [list(llm.stream(*one))[-1].sequence.generated for one in mine[3:5]]
        prompts, params = zip(*mine[5:], strict=True)
        return answers + [answer.token_ids for answer in llm.generate(list(prompts), list(params))]

    with ThreadPoolExecutor(2) as pool:
        for _ in range(4):
            assert list(pool.map(several, work)) == alone
    assert idle(llm)


def test_a_thread_that_steps_on_and_on_lets_others_in(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    params = PARAMS.model_copy(update={"max_tokens": 110, "ignore_eos": True})
    running, ended, step = Event(), Event(), llm.engine.step

    def long_step():
        # as slow as a larger model: a waiting thread would otherwise have to be faster than one that asks again at once
        sleep(0.002)
        return step()

    monkeypatch.setattr(llm.engine, "step", long_step)

    def steps_on() -> None:
        while not ended.is_set():
            for _ in llm.stream("the", params):
                running.set()

    other = Thread(target=steps_on, daemon=True)
    other.start()
    assert running.wait(30)
    waited = []
    for _ in range(10):
        before = llm.engine.speculative.forwards
        llm.generate("in", PARAMS.model_copy(update={"max_tokens": 1}))
        waited.append(llm.engine.speculative.forwards - before)
    ended.set()
    other.join(30)
    assert not other.is_alive()
    # the scheduler of the system may delay single requests; a starved thread would wait for whole answers, every time
    assert sorted(waited)[len(waited) // 2] <= 4
    assert max(waited) < 60


def test_a_stream_that_nobody_reads_keeps_its_text_once(llm: LLM) -> None:
    params = PARAMS.model_copy(update={"max_tokens": 60, "ignore_eos": True})
    alone = [progress.text for progress in llm.stream("the", params)]
    unread = llm.stream("the", params)
    texts, ends = [next(unread).text], []
    llm.generate("in", params)
    (inbox,) = llm._inboxes.values()
    assert len(inbox) > 10
    held = sum(len(value) for step in inbox._steps for value in step if isinstance(value, str)) + len(inbox._text)
    assert held <= len(alone[-1])
    for progress in unread:
        texts.append(progress.text)
        ends.append(progress.finished)
    assert texts == alone, "and every step can still be read"
    assert ends == [False] * (len(ends) - 1) + [True]


def test_a_stream_that_nobody_reads_keeps_no_distributions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distributions take four bytes per vocabulary token and node, and the trace of a draft does not need them."""
    llm, params = LLM(str(folder), f"model:{folder.parent / 'draft'}", verify="rejection"), PARAMS
    drawn, step = list[DraftTree](), llm.engine.step

    def watched() -> list[Progress]:
        progress = step()
        drawn.extend(one.outcome.tree for one in progress if one.outcome.tree is not None)
        return progress

    monkeypatch.setattr(llm.engine, "step", watched)
    unread = llm.stream("the", params)
    read = [next(unread).outcome.tree]
    while llm.engine.has_work:
        llm._tell(llm.engine.step())
    (inbox,) = llm._inboxes.values()
    assert any(tree.proposals for tree in drawn)
    assert not any(tree.proposals for outcome, *_ in inbox._steps if (tree := outcome.tree) is not None)
    read += [progress.outcome.tree for progress in unread]
    assert read == [replace(tree, proposals={}) for tree in drawn], "everything else can still be read"


@pytest.mark.parametrize("changes", [{}, {"temperature": 0.0}, {"temperature": 0.0, "presence_penalty": 1.0}])
def test_logits_that_are_not_numbers_are_a_sentence_for_that_prompt_alone(
    llm: LLM, changes: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = PARAMS.model_copy(update=changes)
    alone = llm.generate("in", params)[0].text
    other, begun = llm.stream("in", params), llm.stream("the thin", params)
    next(other)
    next(begun)
    bad, score = tuple(llm.encode("the thin")), llm.target.score

    def not_numbers(step, cache, taps=()):
        scores, row = score(step, cache, taps), 0
        for segment in step.segments:
            if segment.sequence.prompt == bad:
                scores.logits[row : row + segment.nodes] = torch.nan
            row += segment.nodes
        return scores

    monkeypatch.setattr(llm.target, "score", not_numbers)
    with pytest.raises(LogitsError, match="not numbers"):
        llm.generate("the thin", params)
    assert list(other)[-1].text == alone
    with pytest.raises(LogitsError, match="not numbers"):
        list(begun)
    assert idle(llm)


def test_an_answer_that_ends_in_a_step_that_fails_for_another_is_whole(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    short = PARAMS.model_copy(update={"max_tokens": 3})
    alone = llm.generate("the", short)[0].text
    stream, other = llm.stream("the", short), llm.stream("in", PARAMS)
    last = next(stream)
    next(other)
    policy = llm.engine.speculative.policy
    observe = policy.observe

    def interrupted(*given) -> None:
        observe(*given)
        if last.sequence.finish_reason is not None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(policy, "observe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(other)
    assert list(stream)[-1].text == alone
    assert idle(llm)


def test_a_draft_with_a_smaller_vocabulary_drafts_only_what_it_can_read(folder: Path, tmp_path: Path) -> None:
    """Checkpoints of one tokenizer may pad their vocabulary to different sizes."""
    wide = save_tiny(tmp_path / "wide", 3, vocab_size=300)
    llm = LLM(str(wide), f"model:{folder.parent / 'draft'}")
    for prompt in ([5, 280, 7], [5, 60, 7]):
        drafted = llm.generate(prompt, PARAMS)[0]
        llm.use("none")
        assert llm.generate(prompt, PARAMS)[0].token_ids == drafted.token_ids
        llm.use(f"model:{folder.parent / 'draft'}")


def test_an_interrupted_step_leaves_the_texts_right(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = llm.generate("the", PARAMS)[0].text
    stream = llm.stream("the", PARAMS)
    other = llm.stream("in", PARAMS)
    next(stream)
    next(other)
    cache = llm.engine.speculative.cache

    def interrupted(verdicts):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(cache, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(other)
    assert list(stream)[-1].text == alone


def test_emitted_tokens_count_only_tokens_of_the_answer(folder: Path) -> None:
    llm = LLM(str(folder), f"model:{folder},depth=8")
    plain = llm.generate("the thin", SamplingParams(max_tokens=12))[0]
    assert plain.speculation.emitted_tokens == len(plain.token_ids)
    cut = llm.generate("the thin", SamplingParams(max_tokens=12, stop_token_ids=frozenset({plain.token_ids[4]})))[0]
    assert cut.speculation.emitted_tokens == len(cut.token_ids)
    assert cut.speculation.accepted_tokens >= len(cut.token_ids) - 1
    assert cut.sources == ["model"] * len(cut.token_ids), "the token that ended the text was drafted as well"


@pytest.mark.parametrize(("policy", "levels"), [("fixed", 4), ("bass", 12), ("confidence:threshold=0", 20)])
def test_a_policy_that_ends_drafts_itself_gets_beyond_the_depth_of_a_model(folder: Path, policy: str, levels: int) -> None:
    """The target drafts for itself, so only the depth limit ends a draft."""
    llm = LLM(str(folder), f"model:{folder}", policy=policy)
    plain = LLM(str(folder), "none")
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    answer = llm.generate("the thin", params)[0]
    assert answer.token_ids == plain.generate("the thin", params)[0].token_ids
    assert max(answer.speculation.drafted_to) >= levels


def test_log_probabilities_stand_in_the_answer_where_they_were_asked_for(llm: LLM) -> None:
    asked = PARAMS.model_copy(update={"logprobs": 2, "prompt_logprobs": 0})
    answer, plain = llm.generate(["the thin"] * 2, [asked, PARAMS])
    assert [told.token for told in answer.logprobs] == answer.token_ids
    assert all(len(told.top) == 2 and told.logprob <= 0 for told in answer.logprobs)
    assert answer.prompt_logprobs[0] is None
    assert [told.token for told in answer.prompt_logprobs[1:] if told] == llm.encode("the thin")[1:]
    assert (plain.token_ids, plain.logprobs, plain.prompt_logprobs) == (answer.token_ids, [], [])


def test_token_ids_may_come_as_any_row_of_whole_numbers(llm: LLM) -> None:
    short = SamplingParams(max_tokens=4)
    wanted = llm.generate([[5, 6, 7]], short)[0].token_ids
    for ids in (torch.tensor([5, 6, 7]), torch.tensor([[5, 6, 7]]), np.array([5, 6, 7]), (5, 6, 7)):
        (answer,) = llm.generate(ids, short)  # pyright: ignore[reportArgumentType]
        assert answer.token_ids == wanted


def test_all_requests_of_a_call_end_even_if_a_drafter_fails_as_one_is_released(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = [llm._begun(prompt, PARAMS, None, streamed=False) for prompt in ("the", "thin", "in")]
    abort, ended = llm.engine.abort, []

    def failing(sequence: Any) -> None:
        ended.append(sequence)
        abort(sequence)
        if len(ended) == 1:
            raise RuntimeError("a drafter of a user's own")

    monkeypatch.setattr(llm.engine, "abort", failing)
    with pytest.raises(RuntimeError, match="own"):
        llm._close(begun)
    assert len(ended) == 3
    llm._left += [begun[0].sequence]
    ended.clear()
    with pytest.raises(RuntimeError, match="own"):
        llm.generate("the", SamplingParams(max_tokens=2))
    monkeypatch.undo()
    assert llm.generate("the", SamplingParams(max_tokens=2))[0].token_ids


def test_several_prompts_may_come_as_rows_of_one_token(llm: LLM) -> None:
    short = SamplingParams(max_tokens=4)
    wanted = [answer.token_ids for answer in llm.generate([[5], [7]], short)]
    for ids in (torch.tensor([[5], [7]]), np.array([[5], [7]]), [torch.tensor([5]), torch.tensor([7])]):
        assert [answer.token_ids for answer in llm.generate(ids, short)] == wanted  # pyright: ignore[reportArgumentType]


def test_a_model_may_be_named_by_a_path(tmp_path: Path) -> None:
    assert LLM(WEIGHTS_FOLDER / DEFAULT, draft="none").target.name == DEFAULT
    with pytest.raises(PacelineError, match="there is no model directory"):
        LLM(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("verify", "temperature", "keeps"),
    [("match", 1.0, "text"), ("rejection", 1.0, "law"), ("rejection", 0.0, "text"), ("typical", 1.0, "nothing")],
)
def test_an_answer_says_what_it_keeps_of_plain_decoding(verify: str, temperature: float, keeps: str) -> None:
    llm = LLM(draft="ngram", verify=verify, lossy=True)
    (answer,) = llm.generate("a", SamplingParams(max_tokens=2, temperature=temperature))
    assert answer.keeps == keeps
    told = {"text": "(ngram)", "law": "(ngram); in distribution", "nothing": "(ngram); not lossless"}
    assert summary(answer, "ngram", 1.0).endswith(told[keeps])


def test_the_typed_signature_of_sampling_params_lists_its_fields_and_defaults() -> None:
    (made,) = [node for node in ast.walk(ast.parse(Path(params.__file__).read_text())) if getattr(node, "name", "") == "__init__"]
    assert isinstance(made, ast.FunctionDef)
    told = {one.arg: default for one, default in zip(made.args.kwonlyargs, made.args.kw_defaults, strict=True)}
    assert list(told) == list(SamplingParams.model_fields)
    for name, default in told.items():
        assert default is not None
        value = ast.literal_eval(default)
        held = SamplingParams.model_fields[name].default
        assert value == held or (value in ((), ...) and not held)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"draft": "ngam"}, "there is no drafter 'ngam'; the nearest is 'ngram'"),
        ({"draft": "recycle+ngram:mx=3"}, "'ngram' has no option 'mx'"),
        ({"draft": "ngram^model:x,depth=0"}, "'model' cannot use depth='0'"),
        ({"draft": "model:x@int3"}, "one weight format"),
        ({"draft": "model:x@int8@int8"}, "one weight format"),
        ({"draft": "ngram+auto", "model": DEFAULT}, "'auto' stands alone"),
        ({"draft": "auto:a,b"}, "'auto' takes no options"),
        ({"draft": "nowhere.py"}, "there is no file 'nowhere.py'"),
        ({"extra_drafters": ["ngam"]}, "there is no drafter 'ngam'"),
        ({"offer": ["ngram:mx=3"]}, "'ngram' has no option 'mx'"),
        ({"verify": "mach"}, "there is no verifier 'mach'"),
        ({"policy": "fixt"}, "there is no policy 'fixt'"),
        ({"verify": "contrastive", "draft": "model:x", "policy": "adaptive"}, "leave out the policy 'adaptive'"),
        ({"weights": "int3"}, "not as 'int3'"),
        ({"kv_cache": "int3"}, "not as 'int3'"),
    ],
)
def test_slips_of_the_pen_are_told_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(llm_module, "load_model", lambda *_, **__: pytest.fail("it was loaded"))
    if "model" not in settings:
        # nor looked up
        monkeypatch.setattr(llm_module, "resolve", lambda _: pytest.fail("it was looked for"))
    with pytest.raises(PacelineError, match=re.escape(said)):
        LLM(**settings)
