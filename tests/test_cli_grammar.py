"""The grammar of an answer on the command line: `--json-schema`, `--regex` and `--lark` of generate, chat and check."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from commandline import run

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["the kite", "the boat"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "count"],
}
LARK = 'start: "red" ("," "red")*'


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """The path of a file for each option that names one."""
    schema, lark = tmp_path / "schema.json", tmp_path / "list.lark"
    schema.write_text(json.dumps(SCHEMA))
    lark.write_text(f"{LARK}\n")
    return {"--json-schema": str(schema), "--lark": str(lark)}


def answered(monkeypatch, capsys, *options: str) -> dict:
    call = ("generate", "-p", "Once upon a time", "--temperature", "0.7", "--seed", "3", "--max-tokens", "48", "--json")
    assert run(monkeypatch, *call, *options) == 0
    return json.loads(capsys.readouterr().out)


def test_an_answer_follows_the_schema_the_expression_or_the_grammar(monkeypatch, capsys, files) -> None:
    said = json.loads(answered(monkeypatch, capsys, "--json-schema", files["--json-schema"])["text"])
    assert said["name"] in SCHEMA["properties"]["name"]["enum"]
    assert 0 <= said["count"] <= 9
    assert re.fullmatch("(yes|no)!", answered(monkeypatch, capsys, "--regex", "(yes|no)!")["text"])
    assert re.match("red(,red)*", answered(monkeypatch, capsys, "--lark", files["--lark"])["text"])


@pytest.mark.parametrize("draft", ["auto", "none"])
def test_what_a_grammar_forces_is_drafted_unless_nothing_is(monkeypatch, capsys, files, draft: str) -> None:
    answer = answered(monkeypatch, capsys, "--draft", draft, "--json-schema", files["--json-schema"])
    assert ("grammar" in answer["sources"]) == (draft != "none")
    assert answer["token_ids"] == answered(monkeypatch, capsys, "--json-schema", files["--json-schema"])["token_ids"]


@pytest.mark.parametrize("verify", ["match", "rejection"])
def test_check_puts_a_grammars_drafts_to_the_test(monkeypatch, capsys, files, verify: str) -> None:
    """Under `rejection` sampled tokens are compared with the target's distribution within the grammar."""
    given = ("--draft", "grammar", "--verify", verify, "--json-schema", files["--json-schema"], "--max-tokens", "32")
    assert run(monkeypatch, "check", *given, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["form"] == ("text" if verify == "match" else "law")
    assert report["accepted_tokens"] > 0


@pytest.mark.parametrize("command", [("generate", "-p", "Once"), ("check",)])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--regex", "(yes|no"), "the regular expression cannot be used: unclosed group"),
        (("--regex", ""), "--regex: "),
        (("--json-schema", "/no/such/file"), "cannot read '/no/such/file': No such file or directory"),
        (("--lark", "/dev/null"), "'/dev/null' holds no text"),
        (("--lark", "/dev/zero"), "'/dev/zero' is larger than the 1 MiB that a grammar may have"),
        (("--regex", "a", "--lark", "/dev/null"), "leave the others out"),
    ],
)
def test_a_grammar_that_cannot_be_used_gets_one_sentence_and_exit_code_2(
    monkeypatch, capsys, command: tuple[str, ...], options: tuple[str, ...], expected: str
) -> None:
    assert run(monkeypatch, *command, *options) == 2
    said = capsys.readouterr()
    assert expected in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
