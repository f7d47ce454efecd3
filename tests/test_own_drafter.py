"""The examples of docs/drafters.md, read from the page: its first drafter passes the tests of every drafter."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from paceline.engine.check import examine, law_of, verdict
from paceline.methods import described, options
from paceline.registry import DRAFTERS, Row, UnknownMethod
from test_lossless import Way, plain, run

PAGE = Path(__file__).parents[1] / "docs" / "drafters.md"
WAYS = [
    Way(1, 64, 100_000, "dense", "greedy"),
    Way(3, 7, 110, "panels", "sampled", "adaptive"),
    Way(8, 7, 100_000, "replay", "grammar"),
    Way(2, 1, 110, "stateful", "everything", "confidence"),
]


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The spec of the page's first drafter, registered as the page describes."""
    source, row, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = re.fullmatch(r'"(\w+)": Row\("paceline\.drafters\.(\w+)", "([^"]+)"\),\n', row)
    assert found is not None
    name, module, example = found.groups()
    (tmp_path / f"own_{module}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, f"own_{module}", raising=False)
    monkeypatch.setitem(DRAFTERS._rows, name, Row(f"own_{module}", example))
    return example


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_example_drafters_text_is_that_of_plain_decoding(folder: Path, spec: str, way: Way) -> None:
    assert run(folder, spec, way)[0] == plain(folder, way.params)


def test_drafts_of_the_example_drafter_are_really_accepted(folder: Path, spec: str) -> None:
    _, engine = run(folder, spec, Way(1, 64, 100_000, "dense", "greedy of six"))
    assert engine.speculative.forwards < 0.8 * sum(map(len, plain(folder, "greedy of six")))


def test_the_example_drafter_is_described_with_its_option(spec: str) -> None:
    name = spec.partition(":")[0]
    said = next(row for row in described(DRAFTERS) if row["name"] == name)
    assert {"source", "proposals", "taps", "branching", "trained", "cost"} <= said.keys()
    assert said["summary"]
    (option,) = options(DRAFTERS[name].load())
    assert (option.name, option.values, option.default) == ("depth", "1 to 64", 4)
    assert option.meaning


def test_a_file_is_a_drafter_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "of+mine").mkdir()
    file = tmp_path / "of+mine" / "latest.py"
    file.write_text(source, encoding="utf-8")
    monkeypatch.chdir(file.parent)
    prompt, params = "a b c a b c a b", SamplingParams(max_tokens=24)
    wanted = LLM(draft="none").generate([prompt], params)[0].text
    for spec in ("./latest.py", "latest.py:2", f'"{file}":depth=3+ngram'):
        llm = LLM(draft=spec)
        assert llm.generate([prompt], params)[0].text == wanted
        assert "latest" in llm.engine.speculative.drafter.name
        assert llm.engine.speculative.forwards < 24
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "latest.py").write_text(source, encoding="utf-8")
    assert LLM(draft="mine.latest:2").generate([prompt], params)[0].text == wanted


@pytest.mark.parametrize(
    ("source", "spec", "said"),
    [
        (None, "gone.py", "there is no file 'gone.py'"),
        (
            None,
            "nowhere.to_be.found",
            "'nowhere.to_be.found' cannot be imported (ModuleNotFoundError: No module",
        ),
        ("import (", "own.py", "'own.py' cannot be imported (SyntaxError"),
        ("open('no data')", "own.py", "'own.py' cannot be imported (FileNotFoundError"),
        ("raise KeyError('a\\nb')", "own.py", "'own.py' cannot be imported (KeyError"),
        ("class Options: ...", "own.py:3", "'own.py' holds no method: it has no 'build'"),
    ],
)
def test_a_file_that_holds_no_drafter_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, spec: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if source is not None:
        (tmp_path / "own.py").write_text(source, encoding="utf-8")
    with pytest.raises(UnknownMethod) as refused:
        LLM(draft=spec)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("draft", "verify"),
    [
        ("./counts.py", "match"),
        ("./counts.py", "rejection"),
        ("./small.py:paceline-14m-draft", "match"),
        ("./small.py:paceline-14m-draft", "./single.py"),
    ],
)
def test_the_other_examples_are_lossless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draft: str, verify: str) -> None:
    """They keep the distribution as well, and some of their drafts are accepted."""
    for source in re.findall(r"```python\n(\"\"\".*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        name = source.removeprefix('"""').partition(":")[0].lower()
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    prompts = ["a b c a b c a b", "Once upon a time, there was a"]
    params = [SamplingParams(max_tokens=24), SamplingParams(max_tokens=24, temperature=1.0)]
    rows = list(examine(LLM(draft=draft, verify=verify), draft, prompts, params))
    assert sum(row.speculative.speculation.accepted_tokens for row in rows) > 0
    found = law_of(rows)
    assert (found is None) == (verify == "match")
    assert verdict(rows) != "not lossless"
    assert found is None or found.holds
