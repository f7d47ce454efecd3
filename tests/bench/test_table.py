"""The tables of a run: names are folded between their parts, never within one, and only on narrow terminals."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from paceline.bench import table
from paceline.bench.name import Name

SPEC = 'ngram+model:"paceline-14m-draft",depth=8@int8^recycle, rejection'


def shown(width: int, terminal: bool, *names: str) -> list[str]:
    """Lines of a table with the columns of the speed table, with a row for each name."""
    numbers = ("tokens", "rate", "gain", "decoding", "gain", "tau", "same")
    made = table._table("title", 2, "task", "mode", *numbers)
    for name in names:
        table._add_row(made, "all tasks", name, "1483", "1292.5", "1.83", "1495.2", "2.22", "3.01", "23 of 23")
    file = StringIO()
    table._print(Console(file=file, width=width, force_terminal=terminal, color_system=None), made)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_name_is_folded_behind_what_joins_its_parts() -> None:
    assert Name("ngram, match").lines(6) == ["ngram,", "match"]
    assert Name("ngram, match").lines(12) == ["ngram, match"]
    assert Name("a+b@int8^c:d=1,e").lines(1) == ["a+", "b@", "int8^", "c:", "d=1,", "e"]
    assert Name("").lines(4) == [""]


@pytest.mark.parametrize("width", [1, 7, 11, 20, 40, 100])
def test_a_folded_name_loses_nothing_but_the_spaces_at_ends_of_lines(width: int) -> None:
    lines = Name(SPEC).lines(width)
    assert "".join(lines).replace(" ", "") == SPEC.replace(" ", "")
    assert all(len(line) <= max(width, len('"paceline-')) for line in lines)
    assert all(line[-1] in "-,+@^:" for line in lines[:-1])


def test_a_table_fits_80_columns_with_names_folded_and_numbers_whole() -> None:
    lines = shown(80, True, "ngram, match", SPEC)
    assert max(map(len, lines)) <= 80
    said = "\n".join(lines)
    for part in ("ngram,", "match", '"paceline-', "14m-draft"):
        assert part in said
    assert sum(line.endswith("23 of 23") for line in lines) == 2


def test_a_terminal_narrower_than_the_parts_gets_them_whole_all_the_same() -> None:
    said = "\n".join(shown(30, True, "ngram, rejection"))
    for part in ("ngram,", "rejection", "1292.5", "1495.2", "23 of 23", "decoding"):
        assert part in said
    assert "…" not in said


def test_rows_are_not_folded_where_the_output_is_no_terminal() -> None:
    lines = shown(80, False, "ngram, match", SPEC * 4)
    assert sum("all tasks" in line for line in lines) == 2
    assert any(SPEC * 4 in line and line.endswith("23 of 23") for line in lines)


def test_brackets_in_a_name_are_no_markup() -> None:
    assert any("model:/a[bold]b" in line for line in shown(80, False, "model:/a[bold]b"))


def test_the_fastest_mode_is_not_printed_twice_where_it_is_plain_decoding() -> None:
    def versus(ours: str, rate: float) -> dict[str, object]:
        return {
            "ours": ours,
            "ours_tokens_per_s": rate,
            "theirs": "llama.cpp plain",
            "theirs_tokens_per_s": 50.0,
            "ratio": rate / 50,
        }

    slow, fast = versus("plain", 100.0), versus("ngram", 200.0)
    entries = [
        {"task": "e2e", "peer": "llama.cpp", "plain": slow, "best": slow, "decode_plain": slow, "decode_best": fast},
        # its plain decoding failed
        {"task": "sql", "peer": "llama.cpp", "best": fast},
    ]
    made = table._against({"against_peers": entries})
    assert made.row_count == 4
    file = StringIO()
    Console(file=file, width=120).print(made)
    said = [line.split() for line in file.getvalue().splitlines()]
    for row in (["answers", "plain"], ["decoding", "plain"], ["decoding", "ngram"], ["answers", "ngram"]):
        assert sum(row == words[-6:-4] for words in said) == 1
