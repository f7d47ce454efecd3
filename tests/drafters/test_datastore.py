"""Retrieval: the datastore against its definition, a scan of its documents; and how it is built, read and refused."""

from __future__ import annotations

import errno
import gzip
import json
import os
import tracemalloc
from collections.abc import Callable, Sequence as Many
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from commandline import run
from paceline.budget import Budget
from paceline.datastore import HEADER, SUFFIXES, TOKENS, Datastore, build
from paceline.drafters.datastore import DatastoreDrafter, Options, build as build_drafter
from paceline.kernels.suffixes.array import BORDER, LONGEST_MATCH, SORTED_TO
from paceline.lookups import documents as reading
from paceline.lookups.documents import pieces
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.spec import SpecError
from paceline.tree import DraftTree
from tiny import save_tiny

settings.register_profile("still", derandomize=True, deadline=None, max_examples=100, database=None)
settings.load_profile("still")

END, VOCABULARY = 9, 10
# few different tokens, long documents: most strings occur several times; some documents contain the end token themselves
DOCUMENTS = st.lists(st.lists(st.sampled_from([0, 1, 2, 9]), min_size=1, max_size=40), min_size=1, max_size=5)
TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=24)
ENOUGH = 16


def stored(folder: Path, documents: Many[Many[int]], tokenizer: str = "ours") -> Path:
    """A datastore of documents given as token ids."""
    folder.mkdir(exist_ok=True)
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": " ".join(map(str, document))}) + "\n" for document in documents))
    build([rows], folder / "store", lambda text: [*map(int, text.split())], VOCABULARY, tokenizer, lambda *_: None)
    return folder / "store"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("datastore")


@given(st.one_of(DOCUMENTS, st.lists(st.just([1, 2] * 300), min_size=2, max_size=3)))
def test_suffixes_are_sorted_and_none_is_missing(scratch: Path, documents: list[list[int]]) -> None:
    store = Datastore.open(stored(scratch, documents))
    text = [token for document in documents for token in [*document, BORDER]]
    assert store.tokens.tolist() == text
    assert store.header.documents == len(documents)

    def beginning(at: int) -> tuple[list[int], int]:
        whole = text[at : at + SORTED_TO]
        return whole[: whole.index(BORDER) + 1] if BORDER in whole else whole, at

    assert store.suffixes.tolist() == sorted((at for at in range(len(text)) if text[at] != BORDER), key=beginning)


def drafter(folder: Path, **options: float) -> DatastoreDrafter:
    return DatastoreDrafter(Datastore.open(folder), END, VOCABULARY, Options(path=str(folder), **options))  # pyright: ignore


def proposed(drafter: DatastoreDrafter, text: list[int], budget: Budget | None = None) -> DraftTree:
    return drafter.propose([Sequence(0, tuple(text), SamplingParams(), seed=0)], [budget or drafter.budget])[0]


def continuations(documents: list[list[int]], string: list[int]) -> list[list[int]]:
    """The continuation of each occurrence, up to the end of the document, which counts as the end token."""
    size, found = len(string), []
    for document in documents:
        for at in range(len(document) - size + 1):
            if document[at : at + size] == string:
                rest = [*document[at + size :], END]
                found.append(rest[: rest.index(END) + 1])
    return found


def likely(documents: list[list[int]], text: list[int], shortest: int) -> Callable[[list[int]], float] | None:
    """The probability of a continuation, by the definition; None if nothing matches."""
    matches = [text[len(text) - size :] for size in range(min(len(text), LONGEST_MATCH), shortest - 1, -1)]
    counted = [(match, continuations(documents, match)) for match in matches]
    longest = next(((match, found) for match, found in counted if found), None)
    if longest is None:
        return None
    match, found = longest
    other = next((found for match, found in counted if len(found) >= ENOUGH), []) if len(found) < ENOUGH else []
    weight = len(found) / (len(found) + ENOUGH) if other else 1.0
    seen = 1.0 if other else len(found) / (len(found) + 1 / len(match))

    def share(path: list[int]) -> float:
        total = 0.0
        for told, part in ((found, weight), (other, 1 - weight)):
            if told:
                total += part * sum(one[: len(path)] == path for one in told) / len(told)
        return seen ** len(path) * total

    return share


@given(DOCUMENTS, TEXTS, st.integers(1, 3), st.integers(1, 6), st.integers(1, 12))
def test_a_draft_is_what_a_scan_of_the_documents_finds(
    scratch: Path, documents: list[list[int]], text: list[int], shortest: int, depth: int, nodes: int
) -> None:
    tree = proposed(drafter(stored(scratch, documents), shortest=shortest, depth=depth, nodes=nodes, floor=0.03), text)
    share = likely(documents, text, shortest)
    if share is None:
        assert len(tree) == 1
        return
    paths = [[tree.tokens[node] for node in tree.path(node)] for node in range(len(tree))]
    chances = [share(path) for path in paths]
    for node in range(1, len(tree)):
        assert tree.confidences[node] == pytest.approx(chances[node] / chances[tree.parents[node]])
        assert chances[node] >= 0.03 - 1e-9
        assert paths[node].index(END) == len(paths[node]) - 1 if END in paths[node] else True
    assert chances[1:] == sorted(chances[1:], reverse=True) or np.allclose(chances[1:], sorted(chances[1:], reverse=True))
    # nodes left out are no likelier than nodes in the tree
    room = len(tree) - 1 < nodes
    for path in paths:
        if len(path) < depth and END not in path:
            for token in range(VOCABULARY):
                if [*path, token] not in paths:
                    assert share([*path, token]) <= (0.03 if room else min(chances)) + 1e-9


def test_a_match_never_crosses_a_border(scratch: Path) -> None:
    draft = drafter(stored(scratch, [[1, 2, 3], [4, 5, 6]]))
    assert proposed(draft, [2, 3]).tokens[1:] == (END,)
    assert len(proposed(draft, [3, 4])) == 1
    assert proposed(draft, [4, 5]).tokens[1:] == (6, END)


def test_no_end_is_drafted_for_a_target_without_an_eos(scratch: Path) -> None:
    folder = stored(scratch, [[1, 2, 3]])
    draft = DatastoreDrafter(Datastore.open(folder), -1, VOCABULARY, Options(path=str(folder)))
    assert proposed(draft, [1, 2]).tokens[1:] == (3,)


def test_a_token_the_target_does_not_know_is_not_drafted(scratch: Path) -> None:
    folder = stored(scratch, [[1, 2, 3, 7, 4]])
    draft = DatastoreDrafter(Datastore.open(folder), END, 7, Options(path=str(folder)))
    assert proposed(draft, [1, 2]).tokens[1:] == (3,)


def test_many_hits_are_chosen_evenly(scratch: Path) -> None:
    documents = [[1, 1, 1, number % 4 + 2] for number in range(2000)]
    tree = proposed(drafter(stored(scratch, documents), hits=40, depth=1), [1, 1, 1])
    assert set(tree.tokens[1:]) == {2, 3, 4, 5}
    assert tree.confidences[1:] == pytest.approx([0.25] * 4, rel=1e-3)


@given(TEXTS, st.integers(0, 9), st.integers(0, 6), st.sampled_from([0.0, 0.3]))
def test_a_draft_stays_within_its_budget(scratch: Path, text: list[int], nodes: int, depth: int, floor: float) -> None:
    tree = proposed(drafter(stored(scratch, [[0, 1, 2] * 9, [2, 1] * 7])), text, Budget(nodes, depth, floor))
    assert len(tree) - 1 <= nodes
    assert max(tree.depth) <= depth
    assert all(confidence >= floor for confidence in tree.confidences)


def damaged(folder: Path, change: Callable[[Path], object]) -> str:
    change(folder)
    with pytest.raises(SpecError) as refused:
        Datastore.open(folder)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def _words(file: Path, change: Callable[[np.ndarray], object]) -> None:
    words = np.fromfile(file, "<i4")
    change(words)
    words.tofile(file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda at: (at / HEADER).unlink(), "there is no datastore"),
        (lambda at: (at / HEADER).write_text("{"), "it is not JSON"),
        (lambda at: (at / HEADER).write_text("[]"), "no header"),
        (lambda at: (at / HEADER).write_bytes(b"\xff"), "no header"),
        (lambda at: (at / HEADER).write_text((at / HEADER).read_text().replace('"version": 1', '"version": 2')), "'version'"),
        (lambda at: (at / HEADER).write_text((at / HEADER).read_text().replace('"tokens": ', '"tokens": -')), "'tokens'"),
        (lambda at: (at / TOKENS).unlink(), "cannot read"),
        (lambda at: (at / TOKENS).write_bytes((at / TOKENS).read_bytes()[:-4]), "its header says"),
        (lambda at: (at / SUFFIXES).write_bytes((at / SUFFIXES).read_bytes() + b"1"), "its header says"),
        (lambda at: _words(at / SUFFIXES, lambda words: words.sort()), "not in order"),
        (lambda at: _words(at / SUFFIXES, lambda words: words.fill(-5)), "not in order"),
        (lambda at: _words(at / SUFFIXES, lambda words: words.fill(10**9)), "not in order"),
        (lambda at: _words(at / TOKENS, lambda words: words.fill(3)), "not in order"),
    ],
)  # fmt: skip
def test_what_is_damaged_is_refused_in_one_sentence(tmp_path: Path, change, said: str) -> None:
    assert said in damaged(stored(tmp_path, [[3, 1, 2, 0], [2, 1, 0]]), change)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere", "there is no datastore"),
        ("file", "there is no datastore"),
        ("a\0b", "there is no datastore"),
        ("x" * 300, "cannot read"),
    ],
)
def test_what_can_be_no_datastore_is_refused_in_one_sentence(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").write_text("text")
    assert said in damaged(tmp_path / name, lambda _: None)


def test_damage_that_goes_unseen_costs_speed_alone(tmp_path: Path) -> None:
    """Files are changed after opening, which would detect it: suffixes that point nowhere, invalid token ids."""
    stream = np.random.default_rng(0)
    folder = stored(tmp_path, [stream.integers(0, 3, 9000).tolist()])
    draft = drafter(folder)
    for name in (SUFFIXES, TOKENS):
        words = np.memmap(folder / name, "<i4", "r+")
        words[stream.permutation(9000)[:600]] = stream.integers(-(2**31), 2**31 - 1, 600)
    for _ in range(1000):
        assert all(0 <= token < VOCABULARY for token in proposed(draft, stream.integers(0, 3, 12).tolist()).tokens)


def test_a_datastore_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = stored(tmp_path, [[1, 2, 3]])
    surroundings = SimpleNamespace(
        tokenizer=SimpleNamespace(fingerprint="theirs", ends=frozenset({END})),
        target=SimpleNamespace(eos_token_ids=frozenset({END}), vocab_size=10),
    )
    with pytest.raises(SpecError, match="another tokenizer"):
        build_drafter(Options(path=str(folder)), surroundings)  # pyright: ignore[reportArgumentType]
    surroundings.tokenizer.fingerprint = "ours"
    made = build_drafter(Options(path=str(folder)), surroundings)  # pyright: ignore[reportArgumentType]
    assert proposed(made, [1, 2]).tokens[1:] == (3, END)


@pytest.mark.parametrize(("own", "end"), [({END}, END), (set(), 5), ({7}, 5)])
def test_of_several_ends_the_one_of_the_tokenizer_is_drafted(tmp_path: Path, own: set[int], end: int) -> None:
    """Answers of a chat model end in the tokenizer's end token; without a usable one, the smallest eos id is drafted."""
    folder = stored(tmp_path, [[1, 2, 3]])
    surroundings = SimpleNamespace(
        tokenizer=SimpleNamespace(fingerprint="ours", ends=frozenset(own)),
        target=SimpleNamespace(eos_token_ids=frozenset({5, END}), vocab_size=10),
    )
    made = build_drafter(Options(path=str(folder)), surroundings)  # pyright: ignore[reportArgumentType]
    assert proposed(made, [1, 2]).tokens[1:] == (3, end)


def test_a_datastore_in_use_can_be_rebuilt(tmp_path: Path) -> None:
    old = drafter(stored(tmp_path, [[1, 2, 3]]))
    new = drafter(stored(tmp_path, [[1, 2, 4, 5, 6]]))
    assert proposed(old, [1, 2]).tokens[1:] == (3, END)
    assert proposed(new, [1, 2]).tokens[1:] == (4, 5, 6, END)


def test_a_build_that_fails_leaves_the_one_that_was_there(tmp_path: Path) -> None:
    folder = stored(tmp_path, [[1, 2, 3]])
    (tmp_path / "bad.jsonl").write_text("no JSON\n")
    with pytest.raises(SpecError):
        build([tmp_path / "bad.jsonl"], folder, lambda text: [1], VOCABULARY, "ours", lambda *_: None)
    assert sorted(file.name for file in folder.iterdir()) == sorted((HEADER, SUFFIXES, TOKENS))
    assert proposed(drafter(folder), [1, 2]).tokens[1:] == (3, END)


def test_a_disk_without_room_is_an_error_and_nothing_is_left_on_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "a.txt").write_text("some text")
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(SpecError, match="No space left on device"):
        build([tmp_path / "a.txt"], tmp_path / "out", lambda text: [1, 2, 3], VOCABULARY, "ours", lambda *_: None)
    assert not (tmp_path / "out").exists()


def test_a_datastore_is_built_without_posix_fallocate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    assert proposed(drafter(stored(tmp_path, [[1, 2, 3]])), [1, 2]).tokens[1:] == (3, END)


def said(file: Path) -> list[str]:
    """The documents read from a file."""
    documents, open_ = [], ""
    for piece in pieces(file):
        open_ += piece.text
        if piece.ends:
            documents.append(open_)
            open_ = ""
    assert not open_
    return documents


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "tool", "content": "42"},
    {"role": "assistant", "content": [{"type": "text", "text": "In "}, {"type": "refusal"}, {"type": "text", "text": "parts."}]},
]
LONG = "words and\nlines " * 20_000


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "documents"),
    [
        ("a.txt", LONG, [LONG]),
        ("b.txt", "x" * 200_000, ["x" * 200_000]),
        ("c.jsonl", '{"text": "one\\ntwo"}\n\n{"prompt": "ask =>", "completion": " say"}', ["one\ntwo", "ask => say"]),
        ("d.jsonl", '{"text": "a\u2028b"}\r\n', ["a\u2028b"]),
        ("e.jsonl", '\ufeff{"text": "marked"}\n', ["marked"]),
        ("f.py", LONG, [LONG]),
        ("g", "a name without an end", ["a name without an end"]),
        ("h.jsonl", json.dumps({"messages": CONVERSATION}), ["Hello.\nIn parts."]),
        ("j.jsonl", json.dumps({"text": "word " + "x" * 200_000}), ["word " + "x" * 200_000]),
        ("i.jsonl", "\n".join(json.dumps({"text": text}) for text in (LONG, "x" * 200_000, "")), [LONG, "x" * 200_000, ""]),
    ],
)
def test_documents_are_read_whole(tmp_path: Path, name: str, content: str, documents: list[str], zipped: bool) -> None:
    data = content.encode()
    file = tmp_path / (name + ".gz" if zipped else name)
    file.write_bytes(gzip.compress(data) if zipped else data)
    assert said(file) == documents


@pytest.mark.parametrize(("name", "content"), [("a.txt", LONG), ("b.jsonl", json.dumps({"text": LONG}))])
def test_a_long_text_is_cut_behind_lines(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    found = [piece.text for piece in pieces(tmp_path / name)]
    assert len(found) > 3
    assert all(text.endswith("\n") for text in found[:-1])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"\xff", "not UTF-8"),
        ("j.jsonl", b'{"messages": "fine"}\n', "line 1"),
        ("k.jsonl", b'{"messages": [{"role": "assistant"}]}\n', "nor 'messages'"),
        ("b.jsonl", b'{"text": "fine"}\n{"text": 3}\n', "line 2"),
        ("c.jsonl", b'{"prompt": "fine"}\n', "line 1"),
        ("d.jsonl", b"[" * 100_000, "line 1 is no JSON"),
        ("l.jsonl", b'{"text": "fine"}\n{"text": "cut', "line 2 is no JSON"),
        ("m.jsonl", b'["fine"]', "line 1 has neither 'text', 'prompt' and 'completion', nor 'messages'"),
        ("n.jsonl", b'{"category": "maths", "turns": ["What?"]}', "line 1 holds questions alone, its 'turns': answers"),
        ("i.jsonl", b'{"text": "fine"}\n{"text": "\\ud83d"}\n', "line 2"),
        ("e.txt", b"\xff\xfe\xff", "not UTF-8"),
        ("f.txt.gz", b"plain", "cannot read"),
        ("g.txt.gz", gzip.compress(b"x" * 5000, mtime=0)[:20], "cannot read"),
        ("h.txt", b"", "no text"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used_are_named_in_one_sentence(
    monkeypatch, capsys, tmp_path: Path, target: str, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert run(monkeypatch, "datastore", "build", str(tmp_path / name), "--out", str(tmp_path / "out"), "--model", target) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def test_a_name_that_no_file_can_have_is_told_of_the_file(monkeypatch, capsys, tmp_path: Path, target: str) -> None:
    name, out = "n" * 300 + ".txt", tmp_path / "out"
    assert run(monkeypatch, "datastore", "build", name, "--out", str(out), "--model", target) == 2
    assert capsys.readouterr().err.startswith(f"paceline: cannot read '{name}': ")
    assert not out.exists()


def test_a_file_is_no_folder_to_write_to_and_is_kept(monkeypatch, capsys, tmp_path: Path, target: str) -> None:
    file = tmp_path / "told.txt"
    file.write_text("the thin thing")
    assert run(monkeypatch, "datastore", "build", str(file), "--out", str(file), "--model", target) == 2
    assert capsys.readouterr().err == f"paceline: cannot write a datastore to '{file}': it is no folder\n"
    assert file.read_text() == "the thin thing"


def test_a_row_larger_than_the_limit_is_refused_without_reading_it_whole(
    monkeypatch, capsys, tmp_path: Path, target: str
) -> None:
    monkeypatch.setattr(reading, "LARGEST_ROW_MIB", 1)
    file, out = tmp_path / "a.jsonl.gz", tmp_path / "out"
    rows = '{"text": "' + "a" * ((1 << 20) - 13) + '"}\n'
    assert len(rows) == 1 << 20
    file.write_bytes(gzip.compress(rows.encode()))
    assert said(file) == ["a" * ((1 << 20) - 13)]
    file.write_bytes(gzip.compress(rows.encode() + bytes(64 << 20)))
    # imports on the way allocate memory of their own
    assert run(monkeypatch, "datastore", "build", str(tmp_path / "none"), "--out", str(out), "--model", target) == 2
    capsys.readouterr()
    tracemalloc.start()
    try:
        assert run(monkeypatch, "datastore", "build", str(file), "--out", str(out), "--model", target) == 2
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    told = capsys.readouterr().err
    assert "line 2 is longer than 1 Mi characters" in told
    assert told.count("\n") == 1
    assert not out.exists()


def test_what_is_no_regular_file_is_refused(monkeypatch, capsys, tmp_path: Path, target: str) -> None:
    pipe, out = tmp_path / "pipe", tmp_path / "out"
    os.mkfifo(pipe)
    for file in (Path("/dev/zero"), pipe):
        assert run(monkeypatch, "datastore", "build", str(file), "--out", str(out), "--model", target) == 2
        told = capsys.readouterr().err
        assert f"'{file}' is no regular file" in told
        assert told.count("\n") == 1
        assert not out.exists()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("models") / "target", 3, max_position_embeddings=512))


def test_what_is_built_on_the_command_line_drafts(monkeypatch, capsys, tmp_path: Path, target: str) -> None:
    answer = ("generate", target, "-p", "the thin", "--max-tokens", "40", "--json")
    assert run(monkeypatch, *answer, "--draft", "none") == 0
    plain = json.loads(capsys.readouterr().out)
    (tmp_path / "told.txt").write_text("the thin" + plain["text"], encoding="utf-8")
    out = str(tmp_path / "out")
    assert run(monkeypatch, "datastore", "build", str(tmp_path / "told.txt"), "--out", out, "--model", target, "--json") == 0
    built = json.loads(capsys.readouterr().out)
    assert built["documents"] == 1
    assert built["size_bytes"] == sum((Path(out) / name).stat().st_size for name in (TOKENS, SUFFIXES))
    assert run(monkeypatch, *answer, "--draft", f"datastore:{out}") == 0
    drafted = json.loads(capsys.readouterr().out)
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["speculation"]["steps"] < plain["speculation"]["steps"]
    assert run(monkeypatch, "datastore", "build", str(tmp_path / "told.txt"), "--out", out, "--model", target) == 0
    assert "1 document, " in capsys.readouterr().out


def test_a_home_is_meant_as_where_it_is_drafted_from(monkeypatch, capsys, tmp_path: Path, target: str) -> None:
    (tmp_path / "told.py").write_text("the thin thing")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    call = ("datastore", "build", "told.py", "--model", target, "--out")
    assert run(monkeypatch, *call, "~/store") == 0
    assert (tmp_path / "store" / HEADER).is_file()
    assert run(monkeypatch, "generate", target, "-p", "the thin", "--max-tokens", "4", "--draft", "datastore:~/store") == 0
    capsys.readouterr()
    assert run(monkeypatch, *call, "~nobody-of-this-name/store") == 2
    assert "~nobody-of-this-name" in capsys.readouterr().err
    assert not list(tmp_path.glob("~*"))


def test_a_datastore_for_another_model_is_refused_on_the_command_line(monkeypatch, capsys, tmp_path: Path, target: str) -> None:
    stored(tmp_path, [[1, 2, 3]])
    assert run(monkeypatch, "generate", target, "-p", "x", "--draft", f"datastore:{tmp_path / 'store'}") == 2
    assert "another tokenizer" in capsys.readouterr().err
    assert run(monkeypatch, "generate", target, "-p", "x", "--draft", f"datastore:{tmp_path}") == 2
    said = capsys.readouterr().err
    assert f"'paceline datastore build FILES --out {tmp_path} --model TARGET'" in said
