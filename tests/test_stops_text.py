"""Where a text ends, and how it streams: nothing past a stop is committed or shown, and no character is ever broken."""

from __future__ import annotations

import sys
from collections.abc import Sequence as Many
from itertools import pairwise

import pytest
from hypothesis import example, given, settings, strategies as st
from tokenizers import AddedToken, Tokenizer as Backend, decoders
from tokenizers.models import BPE

from fakes import ChainDrafter, FakeTokenizer, FallbackTokenizer, SpacedTokenizer, TableModel
from paceline.engine.stop_strings import StopString
from paceline.engine.stops import StopChecker
from paceline.engine.text import TextStream
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.step import Verdict
from serving import engine_of, served, wanted

settings.register_profile("still", derandomize=True, deadline=None, max_examples=150, database=None)
settings.load_profile("still")

BYTES = FakeTokenizer.of_bytes(b"th", b"the", "\U0001f6b4\u200d".encode(), "\u20ac".encode()[:2], b"\xacx", b" the")
SPACED = SpacedTokenizer(BYTES.pieces, BYTES.special)
FALLBACK = FallbackTokenizer(BYTES.pieces, BYTES.special)
END = BYTES.vocab_size - 1
LONGEST = 100


def checker(
    params: SamplingParams, prompt: str = "?", tokenizer: FakeTokenizer = BYTES, *, streamed: bool = True
) -> tuple[StopChecker, Sequence]:
    ends = params.stop_token_ids | {END}
    sequence = Sequence(0, tuple(BYTES.encode(prompt)), params, 0, ends, streamed=streamed)
    stops = StopChecker(tokenizer, LONGEST)  # pyright: ignore[reportArgumentType]
    stops.begin(sequence)
    return stops, sequence


def fed(
    tokens: list[int],
    sizes: list[int],
    params: SamplingParams,
    tokenizer: FakeTokenizer = BYTES,
    *,
    streamed: bool = True,
) -> tuple[list[int], str, str | None, list[str]]:
    """Cuts tokens in verdicts of the given sizes, all accepted: returns committed tokens, text, finish reason, all views."""
    stops, sequence = checker(params, tokenizer=tokenizer, streamed=streamed)
    shown, at, turn = [], 0, 0
    while at < len(tokens) and sequence.finish_reason is None:
        size = sizes[turn % len(sizes)]
        batch = tuple(tokens[at : at + size])
        verdict = stops.cut(sequence, Verdict(tuple(range(1, len(batch))), batch, len(batch) - 1))
        sequence.commit(verdict.tokens, ("",) * len(verdict.tokens))
        sequence.finish_reason = verdict.finish
        assert len(verdict.kept) == len(verdict.tokens) - 1
        assert verdict.accepted == len(batch) - 1
        shown.append(stops.stream(sequence).safe)
        at, turn = at + size, turn + 1
    return sequence.generated, stops.stream(sequence).text, sequence.finish_reason, shown


UNFINISHED = (b"\xff", b"\x80" * 9, b"\xe2\x82" * 6)
SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=4)
TEXTS = st.text("aé€\U0001f6b4\u200d the\ufffd", max_size=14)
RAW = st.lists(
    st.sampled_from([0x61, 0x80, 0xAC, 0xC3, 0xA9, 0xE2, 0x82, 0xF0, 0x9F, 0x9A, 0xB4, 0xFF, 256, 258, 259, 260]),
    max_size=16,
)


@pytest.mark.parametrize("sizes", [[1], [2], [3], [7], [1, 4]])
@pytest.mark.parametrize(
    ("text", "params", "kept", "shown"),
    [
        ("hello END more", {"stop": ("END",)}, "hello END", "hello "),
        ("hello", {"stop": ("o",)}, "hello", "hell"),
        ("aXbYc", {"stop": ("Y", "X")}, "aX", "a"),
        ("aabaabaaX..", {"stop": ("aabaaX",)}, "aabaabaaX", "aab"),
        ("ababac", {"stop": ("abac",)}, "ababac", "ab"),
        ("no such thing", {"stop": ("zz",)}, "no such thing", "no such thing"),
        ("wait STO", {"stop": ("STOP",)}, "wait STO", "wait STO"),
        ("x€y", {"stop": ("€",)}, None, "x"),
    ],
)
def test_a_stop_string_ends_the_text_where_it_begins(text: str, params, kept: str | None, shown: str, sizes: list[int]) -> None:
    tokens = BYTES.encode(text)
    committed, final, finish, views = fed(tokens, sizes, SamplingParams(max_tokens=len(tokens), **params))
    if kept is not None:
        assert committed == BYTES.encode(kept)
    assert final == shown
    assert finish == ("stop" if any(stop in text for stop in params["stop"]) else "length")
    assert all(final.startswith(view) for view in views)


@given(st.lists(st.sampled_from([97, 98, END]), max_size=12), SIZES)
def test_nothing_is_committed_past_the_end_of_text(tokens: list[int], sizes: list[int]) -> None:
    committed, text, finish, _ = fed(tokens, sizes, SamplingParams())
    whole = tokens[: tokens.index(END) + 1] if END in tokens else tokens
    assert committed == whole
    assert text == BYTES.decode(whole)
    assert finish == ("stop" if END in tokens else None)


@given(st.lists(st.sampled_from([97, 98, 99]), min_size=1, max_size=12), SIZES, st.integers(1, 14))
def test_a_text_is_never_longer_than_asked(tokens: list[int], sizes: list[int], limit: int) -> None:
    committed, text, finish, _ = fed(tokens, sizes, SamplingParams(max_tokens=limit))
    assert committed == tokens[:limit]
    assert text == BYTES.decode(committed)
    assert finish == ("length" if len(tokens) >= limit else None)


def test_a_text_ends_where_the_context_ends() -> None:
    stops, sequence = checker(SamplingParams(max_tokens=9999), prompt="p" * (LONGEST - 3))
    verdict = stops.cut(sequence, Verdict((1, 2, 3), (97, 98, 99, 100), 3))
    assert verdict == Verdict((1, 2, 3), (97, 98, 99), 3, "length")


@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK])
@given(
    st.lists(st.sampled_from([b"a", "\u20ac".encode(), "\U0001f6b4".encode(), *UNFINISHED]), max_size=60),
    SIZES,
    st.lists(st.sampled_from(["aa", "\u20aca", "\U0001f6b4"]), max_size=2),
    st.integers(0, 3),
)
@example([b"a", *["\u20ac".encode()] * 30], [3, 9], [], 0)
def test_a_text_that_nobody_reads_before_its_end_is_the_same_text(
    tokenizer: FakeTokenizer, parts: list[bytes], sizes: list[int], stops: list[str], missing: int
) -> None:
    tokens = list(b"".join(parts))[: LONGEST - 3]
    params = SamplingParams(max_tokens=max(len(tokens) - missing, 1), stop=tuple(stops))
    told, waited = (fed(tokens, sizes, params, tokenizer, streamed=streamed) for streamed in (True, False))
    if told[2] is not None:
        assert waited[:3] == told[:3]
    if not stops:
        # without stop strings nothing is shown and nothing is decoded before the end
        assert set(waited[3][:-1] if waited[2] else waited[3]) <= {""}


def test_the_text_of_a_request_that_is_cut_short_is_what_a_stream_would_have_shown() -> None:
    for text in (b"aa\xe2\x82", "a\u20ac".encode()):
        stops, sequence = checker(SamplingParams(), streamed=False)
        stops.cut(sequence, Verdict(tuple(range(1, len(text))), tuple(text), len(text) - 1))
        sequence.commit(tuple(text), ("",) * len(text))
        assert stops.stream(sequence).text == ""
        assert stops.cut_short(sequence) == text.decode(errors="ignore")


def test_a_stop_token_wins_over_the_length_it_falls_on_and_has_no_text() -> None:
    committed, text, finish, _ = fed([97, 98], [2], SamplingParams(max_tokens=2, stop_token_ids=frozenset({98})))
    assert (committed, text, finish) == ([97, 98], "a", "stop")


@given(
    st.lists(st.sampled_from([97, 98, 120, 256, 257]), max_size=16),
    SIZES,
    st.lists(st.sampled_from(["ab", "xab", "bthe", "x", "aa"]), max_size=2),
)
def test_the_text_and_its_stop_do_not_depend_on_the_split_into_steps(
    tokens: list[int], sizes: list[int], stops: list[str]
) -> None:
    params = SamplingParams(stop=tuple(stops))
    one_by_one, at_will = fed(tokens, [1], params), fed(tokens, sizes, params)
    assert one_by_one[:3] == at_will[:3]
    text = BYTES.decode(tokens)
    begins = [text.find(stop) for stop in stops if stop in text]
    if not begins:
        assert at_will[1] == text[: len(at_will[1])]
    for view in at_will[3]:
        assert not any(stop in view for stop in stops)


@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK])
@given(
    st.lists(st.sampled_from([b"a", "\u20ac".encode(), "\U0001f6b4".encode(), *UNFINISHED]), max_size=60),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
@example([*["\U0001f6b4".encode()] * 22], [2, 8, 8])
@example([b"a", *["\u20ac".encode()] * 22], [3, 9])
def test_long_runs_of_bytes_are_the_same_text_in_any_steps(
    tokenizer: FakeTokenizer, parts: list[bytes], sizes: list[int]
) -> None:
    """Byte fallback replaces a whole run of bytes while its last character is incomplete, even if the others are complete."""
    tokens = list(b"".join(parts))[: LONGEST - 2]
    params = SamplingParams(max_tokens=len(tokens) + 1)
    one_by_one, at_will = (fed(tokens, steps, params, tokenizer) for steps in ([1], sizes))
    assert at_will[:3] == one_by_one[:3]
    for views in (one_by_one[3], at_will[3]):
        assert all(later.startswith(view) for view, later in pairwise(views))
    if not set(parts) & set(UNFINISHED):
        assert at_will[1] == bytes(tokens).decode(errors="ignore")


class Fallback:
    """SentencePiece's real byte fallback, as the tokenizers library decodes it. Ids 0 to 255 are the bytes."""

    words = ("\u2581the", "\u2581", "a", "\u00e9", "</s>", "<s>")

    def __init__(self) -> None:
        vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {word: 256 + at for at, word in enumerate(self.words)}
        self.backend = Backend(BPE(vocab=vocabulary, merges=[], byte_fallback=True))
        parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        self.backend.decoder = decoders.Sequence(parts)  # pyright: ignore[reportAttributeAccessIssue]
        self.backend.add_special_tokens([AddedToken(word, special=True) for word in self.words[-2:]])

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)


REAL = Fallback()
WORDS = [[256 + at] for at in range(len(REAL.words))]


@given(
    st.lists(st.sampled_from([*WORDS, [260] * 6, *map(list, ("\u65e5".encode(), "\u00e9".encode(), b"\xe6\x97"))]), max_size=30),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.sampled_from([(), (258,), (256, 261), (260, 230, 151)]),
    st.booleans(),
)
@example([[0xC3, 0xA9], [0xE6, 0x97], [258]], [5], (), True)
@example([[256]] * 12 + [[260]] * 4 + [[256]] * 2, [7], (), True)
@settings(max_examples=400)
def test_byte_fallback_and_special_tokens_are_the_same_text_in_any_steps(
    parts: list[list[int]], sizes: list[int], prompt: tuple[int, ...], skip: bool
) -> None:
    tokens = [token for part in parts for token in part]
    texts = []
    for steps in ([1], sizes):
        stream, at, turn = TextStream(REAL, (), prompt, skip_special_tokens=skip), 0, 0  # pyright: ignore[reportArgumentType]
        while at < len(tokens):
            before = stream.text
            stream.extend(tokens[at : at + steps[turn % len(steps)]])
            assert stream.text.startswith(before)
            at, turn = at + steps[turn % len(steps)], turn + 1
        stream.finish()
        texts.append(stream.text)
    assert texts[0] == texts[1]
    if not prompt and [0xE6, 0x97] not in parts:
        assert texts[0] == REAL.decode(tokens, skip)


def test_tokens_without_text_are_not_decoded_again_with_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, most, decode = [256, *[260] * 500, 256], 0, REAL.decode

    def counted(ids: list[int], skip_special_tokens: bool = True) -> str:
        nonlocal most
        most = max(most, len(ids))
        return decode(ids, skip_special_tokens)

    monkeypatch.setattr(REAL, "decode", counted)
    stream = TextStream(REAL)  # pyright: ignore[reportArgumentType]
    for token in tokens:
        stream.append(token)
    assert (stream.text, most) == ("the the", 2)


def streamed(tokens: list[int], tokenizer: FakeTokenizer) -> tuple[list[str], str]:
    stream = TextStream(tokenizer)  # pyright: ignore[reportArgumentType]
    views = [""]
    for token in tokens:
        stream.append(token)
        views.append(stream.safe)
    stream.finish()
    return views, stream.text


@pytest.mark.parametrize("tokenizer", [BYTES, SPACED, FALLBACK])
@given(text=TEXTS)
@example(text="日本語です。")
def test_a_stream_of_bytes_adds_up_to_the_text(tokenizer: FakeTokenizer, text: str) -> None:
    # FALLBACK does not have the tokens that end inside a character
    for tokens in [list(text.encode())] + [BYTES.encode(text)] * (tokenizer is not FALLBACK):
        views, final = streamed(tokens, tokenizer)
        assert final == tokenizer.decode(tokens)
        for view, later in pairwise([*views, final]):
            assert later.startswith(view)


@pytest.mark.parametrize("tokenizer", [BYTES, SPACED])
@given(tokens=RAW)
@settings(max_examples=600)
def test_broken_bytes_stream_as_they_decode(tokenizer: FakeTokenizer, tokens: list[int]) -> None:
    """Lone continuation bytes, truncated characters, invalid bytes, tokens that end inside a character."""
    views, final = streamed(tokens, tokenizer)
    assert final == tokenizer.decode(tokens)
    for view, later in pairwise([*views, final]):
        assert later.startswith(view)


@given(tokens=RAW)
def test_broken_bytes_never_take_back_what_was_shown(tokens: list[int]) -> None:
    views, final = streamed([token for token in tokens if token < 258], FALLBACK)
    for view, later in pairwise([*views, final]):
        assert later.startswith(view)


@pytest.mark.parametrize("filler", [b"\x80", b"\xe2\x82", b"\xf0\x9f\x9a", b"\xc3\xff"])
def test_bytes_that_are_no_text_are_shown_and_decoded_few_at_a_time(filler: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, most = [*list(b"ab"), *list(filler * 200), *list("é!".encode())], 0

    def decode(ids: list[int], skip_special_tokens: bool = True) -> str:
        nonlocal most
        most = max(most, len(ids))
        return bytes(ids).decode(errors="replace")

    whole = decode(tokens)
    most = 0
    monkeypatch.setattr(BYTES, "decode", decode)
    views, final = streamed(tokens, BYTES)
    assert final == whole
    assert most <= 64
    assert all(len(later) - len(view) <= 64 for view, later in pairwise(views))


@pytest.mark.parametrize("opening", ["Hi\ubdc1\ubdc1", "\ubdc1\ubdc1\ubdc1", "\ubdc1", "\U0001f6b4\U0001f6b4"])
@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK])
def test_a_prompt_that_ends_in_bytes_of_characters_is_not_shown_again(tokenizer: FakeTokenizer, opening: str) -> None:
    for text in ("A ok", "\uc00d!", "\U0001f6b4"):
        stream = TextStream(tokenizer, ("!",), tuple(opening.encode()))  # pyright: ignore[reportArgumentType]
        for token in text.encode():
            stream.append(token)
        stream.finish()
        assert stream.text == text.removesuffix("!")
        assert stream.stopped == text.endswith("!")


def test_a_whole_character_is_shown_as_soon_as_its_last_byte_comes() -> None:
    views, _ = streamed(list("é€\U0001f6b4".encode()), BYTES)
    assert views == ["", "", "é", "é", "é", "é€", "é€", "é€", "é€", "é€\U0001f6b4"]


def test_a_stop_string_is_found_when_its_last_character_is_completed() -> None:
    committed, text, finish, _ = fed(list("a\U0001f6b4b".encode()), [3], SamplingParams(stop=("\U0001f6b4",)))
    assert (committed, text, finish) == (list("a\U0001f6b4".encode()), "a", "stop")


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_what_is_shown_only_grows_and_never_holds_the_start_of_a_stop(text: str, stops: list[str]) -> None:
    stream = TextStream(BYTES, tuple(stops))  # pyright: ignore[reportArgumentType]
    before = ""
    for token in text.encode():
        stream.append(token)
        assert stream.safe.startswith(before)
        assert stream.text.startswith(stream.safe)
        before = stream.safe
        if stream.stopped:
            break
    begins = [text.find(stop) for stop in stops if stop in text]
    assert stream.stopped == bool(begins)
    if begins:
        # the stop completed first ends the text; of several completed together, the longest
        ends = min(text.find(stop) + len(stop) for stop in stops if stop in text)
        assert stream.text == text[: min(ends - len(stop) for stop in stops if text[:ends].endswith(stop))]


def looked_back(text: str, stops: list[str]) -> tuple[str, str | None, str]:
    """The expected text, its stop string and the text that may be shown, found by searching the whole text."""
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if found:
        at, _, stop = min(found)
        return text[:at], stop, text[:at]
    begun = [size for stop in stops for size in range(len(stop)) if text.endswith(stop[:size])]
    return text, None, text[: len(text) - max(begun)]


@given(
    pieces=st.lists(st.text("ab", min_size=1, max_size=5), max_size=8),
    stops=st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=4),
)
@settings(max_examples=2_000)
@example(pieces=["abaab", "aab"], stops=["abaaba", "aabaaa"])
@example(pieces=["aaaa", "ab"], stops=["aaaaab", "aab"])
def test_stop_strings_are_found_as_by_looking_at_the_whole_text(pieces: list[str], stops: list[str]) -> None:
    stream, text = TextStream(BYTES, tuple(stops)), ""  # pyright: ignore[reportArgumentType]
    for piece in pieces:
        stream.extend(list(piece.encode()))
        text += piece
        assert (stream.text, stream.stop, stream.safe) == looked_back(text, stops)
        if stream.stopped:
            break


def test_no_stop_string_has_the_text_looked_through_again_and_again() -> None:
    """Uses the most and longest stop strings allowed, each nearly matching at every character."""
    stream = TextStream(BYTES, tuple("a" + "c" * 1022 + chr(33 + at) for at in range(64)))  # pyright: ignore[reportArgumentType]
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    steps = 1_100
    sys.setprofile(count)
    try:
        for _ in range(steps):
            stream.append(97)
            assert len(stream.text) - len(stream.safe) == 1
    finally:
        sys.setprofile(None)
    assert calls < 64 * 10 * steps


STOPPERS = {
    "end of text": SamplingParams(max_tokens=60),
    "stop ids": SamplingParams(max_tokens=60, stop_token_ids=frozenset({2}), ignore_eos=True),
    "min tokens": SamplingParams(max_tokens=60, stop_token_ids=frozenset({1, 2}), min_tokens=9),
    "stop strings": SamplingParams(max_tokens=60, stop=("ba", "dcd", "ab", "cc"), ignore_eos=True),
    "length": SamplingParams(max_tokens=7, ignore_eos=True),
    "context": SamplingParams(max_tokens=500, ignore_eos=True),
}


@pytest.mark.parametrize("name", STOPPERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stop_inside_an_accepted_path_cuts_at_the_right_token(name: str, temperature: float) -> None:
    """The draft is always right and five deep, so that stops fall inside accepted paths."""
    model = TableModel(6, eos=(5,), context_length=90, sharpness=1.0)
    tokenizer = FakeTokenizer([*(bytes([97 + token]) for token in range(5)), b""], special=(5,))
    engine = engine_of(model, ChainDrafter(model, depth=5), tokenizer=tokenizer)
    cut = 0
    for seed in range(25):
        params = STOPPERS[name].model_copy(update={"seed": seed, "temperature": temperature})
        prompt = (seed % 5, seed // 5, 3, 1)
        ((sequence, views),) = served(engine, [(prompt, params)])
        answer = wanted(model, tokenizer, prompt, params, seed, longest=90)
        assert (sequence.generated, views[-1], sequence.finish_reason) == (answer.tokens, answer.text, answer.finish)
        assert all(answer.text.startswith(view) for view in views)
        assert len(sequence.sources) == len(sequence.generated)
        count = sequence.speculation
        cut += count.accepted_tokens + count.steps > len(sequence.generated)
    assert cut or name in ("length", "context")


@pytest.mark.parametrize(
    ("text", "least", "shown"),
    [
        ("STOP a STOP b", 4, "STOP a "),
        ("STOP a STOP b", 12, "STOP a STOP b"),
        ("aSTOP.STOP", 3, "aSTOP."),
        ("aSTOP", 1, "a"),
        ("aSTOP", 99, "aSTOP"),
        ("\u20acSTOP.", 2, "\u20ac"),
    ],
)
@pytest.mark.parametrize("sizes", [[1], [3], [20]])
def test_no_stop_string_is_found_within_min_tokens(text: str, least: int, shown: str, sizes: list[int]) -> None:
    params, tokens = SamplingParams(stop=("STOP",), min_tokens=least), list(text.encode())
    committed, final, finish, _ = fed(tokens, sizes, params)
    assert (final, finish) == (shown, "stop" if shown != text else None)
    assert committed == (list((shown + "STOP").encode()) if finish else tokens)
    stream = TextStream(BYTES, ("STOP",), min_tokens=least)  # pyright: ignore[reportArgumentType]
    stream.extend(tokens[:least])
    # text that cannot begin a stop string is not held back
    assert stream.safe == bytes(tokens[:least]).decode(errors="ignore")
    stream.extend(tokens[least:])
    assert stream.text == shown


def test_a_stop_string_may_be_kept_and_is_named() -> None:
    for keep, text in ((False, "ab"), (True, "abcd")):
        stream = TextStream(BYTES, ("cd", "zz"), include_stop_str_in_output=keep)  # pyright: ignore[reportArgumentType]
        for byte in b"abcde":
            if not stream.stopped:
                stream.append(byte)
        assert (stream.text, stream.safe, stream.stop) == (text, text, "cd")


def test_special_tokens_show_when_asked_for() -> None:
    end = BYTES.vocab_size - 1
    tokenizer = Shown(BYTES.pieces, BYTES.special)
    for skip, text in ((True, "a"), (False, "a<end>")):
        stream = TextStream(tokenizer, skip_special_tokens=skip)  # pyright: ignore[reportArgumentType]
        for token in (97, end):
            stream.append(token)
        assert stream.text == text


class Shown(FakeTokenizer):
    """Decodes special tokens to text unless they are skipped."""

    def decode(self, ids: Many[int], skip_special_tokens: bool = True) -> str:
        return "".join(
            "" if t in self.special and skip_special_tokens else super(Shown, self).decode([t]) or "<end>" for t in ids
        )


def test_the_beginnings_of_a_stop_string_are_tried_one_within_another() -> None:
    assert StopString("aaabx").read("aaabaabx") is None


def test_a_stop_string_that_only_the_end_of_the_text_completes_is_named() -> None:
    """Half a character becomes U+FFFD once no other half may follow."""
    checker = StopChecker(FakeTokenizer([b"\xc3"] * 6), 100)  # pyright: ignore[reportArgumentType]
    one = Sequence(0, (1,), SamplingParams(max_tokens=1, stop=("\ufffd",)), 0)
    checker.begin(one)
    assert checker.cut(one, Verdict((), (2,))).finish == "stop"
    assert one.stop == "\ufffd"
