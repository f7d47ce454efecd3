"""The bytes of tokens, as the tokenizer decodes them, and the way back from bytes to tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from foreign import pieced_tokenizer, save, shuffled_tokenizer, spaced_tokenizer
from paceline.models.embedded import WEIGHTS_FOLDER
from paceline.models.pieces import Pieces, translated_specials
from paceline.models.tokenizer import Tokenizer
from shared import CHECKPOINTS
from tiny import save_tokenizer

still = settings(derandomize=True, deadline=None, max_examples=150, database=None)
STORIES = CHECKPOINTS / "stories260K"
TEXTS = ["the thin and the thick", " then", "in\nthere", "h\u00e9 \U0001f600 on", "\n\n a", "<s> hello", "  two", "\u00e9"]


class _Silent:
    def save_pretrained(self, folder: Path) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pieces")
    (made / "tiny").mkdir()
    save_tokenizer(made / "tiny")
    save(made / "shuffled", shuffled_tokenizer(), _Silent(), eos_token="<end>", bos_token="<s>")
    save(made / "pieced", pieced_tokenizer(), _Silent(), unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    save(made / "spaced", spaced_tokenizer(), _Silent(), unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    return made


Made = Callable[[str], tuple[Tokenizer, Pieces]]


@pytest.fixture(scope="module")
def made(folder: Path) -> Made:
    places = {"stories": STORIES, "embedded": WEIGHTS_FOLDER / "paceline-14m"}
    known: dict[str, tuple[Tokenizer, Pieces]] = {}

    def get(name: str) -> tuple[Tokenizer, Pieces]:
        place = places.get(name, folder / name)
        if not place.is_dir():
            pytest.skip(f"{place} is not here")
        if name not in known:
            tokenizer = Tokenizer(place)
            known[name] = tokenizer, Pieces(tokenizer, tokenizer.vocab_size + 3)
        return known[name]

    return get


NAMES = ["tiny", "shuffled", "pieced", "spaced", "stories", "embedded"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_a_text_are_those_of_its_tokens(made: Made, name: str, text: str) -> None:
    """Except for a space that the tokenizer puts in front."""
    tokenizer, pieces = made(name)
    ids = tokenizer.encode(text, add_special=False)
    if any(token in pieces.names for token in ids):
        return
    assert pieces.bytes_of(ids) in (text.encode(), b" " + text.encode())
    assert tuple(tokenizer.encode(text)[: len(pieces.opening)]) == pieces.opening


@pytest.mark.parametrize("name", NAMES)
def test_every_token_means_what_it_decodes_to(made: Made, name: str) -> None:
    tokenizer, pieces = made(name)
    around = tokenizer.encode("x", add_special=False)
    before = tokenizer.decode(around)
    for token in range(tokenizer.vocab_size):
        decoded = tokenizer.decode([*around, token], skip_special_tokens=True)
        if "\ufffd" not in decoded:
            assert before.encode() + pieces.of[token] == decoded.encode()
    assert pieces.of[tokenizer.vocab_size :] == [b""] * 3


def test_a_token_that_the_tokenizer_appends_is_no_opening_token(made: Made) -> None:
    tokenizer, pieces = made("spaced")
    assert tokenizer.encode("x")[-1] == pieces.roles["eos"]
    assert pieces.opening == (pieces.roles["bos"],)


@pytest.mark.parametrize("name", NAMES)
@still
@given(data=st.one_of(st.binary(max_size=12), st.text(max_size=12).map(lambda text: text.encode("utf-8", "ignore"))))
def test_any_bytes_can_be_spelled(made: Made, name: str, data: bytes) -> None:
    _, pieces = made(name)
    assert pieces.bytes_of(pieces.spelled(data)) == data


@pytest.mark.parametrize("name", NAMES)
def test_a_text_is_spelled_as_its_tokenizer_would(made: Made, name: str) -> None:
    tokenizer, pieces = made(name)
    whole = tokenizer.encode("on the thin and in the band", add_special=False)
    for at in range(1, len(whole)):
        if pieces.of[whole[at]][:1] == b" ":
            assert pieces.spelled(pieces.bytes_of(whole[at:])) == whole[at:]
    assert pieces.spelled(b"on the thin and in the band", opens=True) == whole


@pytest.mark.parametrize("name", NAMES)
def test_a_token_is_found_by_its_bytes(made: Made, name: str) -> None:
    _, pieces = made(name)
    assert len(pieces.tokens) > 200
    for data, token in pieces.tokens.items():
        assert pieces.of[token] == data


def test_a_written_piece_comes_before_a_byte(made: Made) -> None:
    tokenizer, pieces = made("pieced")
    assert pieces.tokens[b"a"] == tokenizer.library.convert_tokens_to_ids("a")
    assert pieces.tokens[b"A"] == tokenizer.library.convert_tokens_to_ids("<0x41>")


def test_special_tokens_are_translated_by_name_or_by_what_they_are_for(made: Made) -> None:
    (_, tiny), (_, shuffled), (_, pieced) = made("tiny"), made("shuffled"), made("pieced")
    ends = (tiny.special["</s>"], shuffled.special["<end>"], pieced.special["</s>"])
    assert translated_specials(tiny, shuffled) == {1: shuffled.special["<s>"], ends[0]: ends[1]}
    assert translated_specials(shuffled, tiny) == {shuffled.special["<s>"]: 1, ends[1]: ends[0]}
    assert translated_specials(tiny, pieced) == {0: 0, 1: 1, 2: 2}


def test_boundary_finds_only_byte_offsets_between_tokens(made: Made) -> None:
    _, pieces = made("tiny")
    tokens = pieces.spelled(b"the in")
    assert [pieces.boundary(tokens, size) for size in (0, 3, 4, 6)] == [0, 1, 2, 3]
    assert pieces.boundary(tokens, 2) is None
    assert pieces.boundary(tokens, 7) is None


def test_tokens_that_the_model_lacks_are_not_spelled_with(folder: Path) -> None:
    tokenizer = Tokenizer(folder / "tiny")
    assert tokenizer.encode("the thin", add_special=False)[0] >= 260
    pieces = Pieces(tokenizer, 260)
    spelled = pieces.spelled(b"the thin")
    assert max(spelled) < 260
    assert pieces.bytes_of(spelled) == b"the thin"


def test_bytes_that_no_token_stands_for_are_spelled_as_unknown(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Library, models

    library = Library(models.BPE({"<unk>": 0, "a": 1, "b": 2}, [], unk_token="<unk>"))
    library.add_special_tokens(["<unk>"])
    save(tmp_path, library, _Silent(), unk_token="<unk>")
    pieces = Pieces(Tokenizer(tmp_path), 3)
    assert pieces.spelled(b"a?b") == [1, 0, 2]


def test_bytes_that_a_tokenizer_cannot_encode_are_left_out(tmp_path: Path) -> None:
    """It has no unknown token, and raises. A target with another tokenizer may have such characters in any text."""
    from tokenizers import Tokenizer as Library, models

    save(tmp_path, Library(models.Unigram([("a", -1.0), ("b", -1.0), ("x", -2.0)], None, False)), _Silent())
    pieces = Pieces(Tokenizer(tmp_path), 3)
    assert pieces.spelled("aéb".encode()) == [0, 1]
    assert pieces.spelled("aéb".encode(), opens=True) == [0, 1]
    assert pieces.spelled(b"ab") == [0, 1]


def test_one_special_name_in_a_long_text_does_not_change_the_split_of_the_rest(tmp_path: Path) -> None:
    """The text contains the name of a special token, which the tokenizer would encode as that token."""
    from tokenizers import Tokenizer as Library, models

    names = ["<unk>", "a", "b", "c", "bc", "ab", " ", "<", "e", "n", "d", ">", "<end>"]
    library = Library(models.BPE({name: token for token, name in enumerate(names)}, [("b", "c"), ("a", "b")], unk_token="<unk>"))
    library.add_special_tokens(["<unk>", "<end>"])
    save(tmp_path, library, _Silent(), unk_token="<unk>", eos_token="<end>")
    pieces = Pieces(Tokenizer(tmp_path), len(names))
    assert pieces.spelled(b"abc " * 30) == [1, 4, 6] * 30
    text = b"abc " * 40 + b"<end>" + b" abc" * 40
    tokens = pieces.spelled(text)
    assert pieces.bytes_of(tokens) == text
    assert tokens[:90] == [1, 4, 6] * 30
    assert tokens[-45:] == [6, 1, 4] * 15


@pytest.mark.parametrize("name", NAMES)
def test_long_texts_that_a_tokenizer_cannot_write_are_spelled_to_the_byte(made: Made, name: str) -> None:
    _, pieces = made(name)
    lines = "the thin </s>\n\nand  e\u0301t\u00e9 <s>in\tthe band \n".encode() * 20
    for data in (lines, lines[:-1] + b"\xc3", "\u6771\u4eac\U0001f600".encode()[:-1] * 60, bytes(range(256)) * 3):
        assert pieces.bytes_of(pieces.spelled(data)) == data
