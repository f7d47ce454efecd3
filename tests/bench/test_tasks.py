"""Task files and built-in tasks: names kept, sizes bounded, one sentence for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench.builtin import BUILT_IN
from paceline.bench.errors import BenchError
from paceline.bench.tasks import LARGEST_FILE_BYTES, Item, load_tasks


def test_spec_bench_rows_are_grouped_by_category_and_keep_their_turns(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    rows = [
        {"question_id": 1, "category": "writing", "turns": ["Write.", "Again."]},
        {"question_id": 2, "category": "qa", "turns": ["Who?"]},
        {"question_id": 3, "category": "writing", "turns": ["More\u2028lines."]},
        {"prompt": "raw text", "task": "own"},
        {"prompt": "no task"},
    ]
    file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n", encoding="utf-8")
    tasks = {task.name: task.items for task in load_tasks(str(file))}
    assert list(tasks) == ["writing", "qa", "own", "questions"]
    assert tasks["writing"] == (Item(("Write.", "Again."), chat=True), Item(("More\u2028lines.",), chat=True))
    assert tasks["own"] == (Item(("raw text",)),)


def test_the_categories_of_mt_bench_are_one_family_where_all_of_them_are_there(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    names = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
    rows = [{"category": name, "turns": [f"{name} {count}"]} for name in names for count in range(2)]
    file.write_text("\n".join(map(json.dumps, [*rows, {"category": "qa", "turns": ["Who?"]}])))
    tasks = {task.name: task.items for task in load_tasks(str(file))}
    assert {name: len(items) for name, items in tasks.items()} == {"multi-turn": 16, "qa": 1}
    assert {item.texts[0].split()[0] for item in tasks["multi-turn"][:8]} == set(names), "the first ones cover all categories"
    file.write_text("\n".join(map(json.dumps, rows[2:])))
    assert len(load_tasks(str(file))) == 7, "a file with only some of the categories keeps them separate"


def test_categories_of_a_file_can_be_chosen(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(json.dumps({"category": name, "turns": ["Who?"]}) for name in ("qa", "rag", "translation")))
    assert [task.name for task in load_tasks(f"e2e,{file}", categories="rag, qa")] == ["e2e", "qa", "rag"]
    with pytest.raises(BenchError, match="no file has the category 'translate'; the nearest is 'translation'"):
        load_tasks(str(file), categories="qa,translate")
    with pytest.raises(BenchError, match="there are none"):
        load_tasks("e2e", categories="qa")


def test_a_task_may_not_be_called_all_tasks(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "a", "task": "all tasks"}')
    with pytest.raises(BenchError, match="cannot be called 'all tasks'"):
        load_tasks(str(file))


def test_built_in_tasks_can_be_mixed_with_files_and_cut(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "x", "task": "mine"}\n' * 5)
    tasks = load_tasks(f"e2e, {file}", limit=2)
    assert [(task.name, len(task.items)) for task in tasks] == [("e2e", 2), ("mine", 2)]


def test_a_digest_tells_texts_apart(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    digests = []
    for prompt, more in (("one", ()), ("one", ()), ("two", ()), ("one", ("limit",))):
        file.write_text(json.dumps({"prompt": prompt}) + "\n" + json.dumps({"prompt": "three"}) + "\n")
        digests.append(load_tasks(str(file), 1 if more else None)[0].sha256)
    first, again, other, fewer = digests
    assert first == again
    assert len({first, other, fewer}) == 3


def test_every_built_in_task_has_several_distinct_prompts() -> None:
    tasks = load_tasks(",".join(BUILT_IN))
    assert [task.name for task in tasks] == list(BUILT_IN)
    prompts = [text for task in tasks for item in task.items for text in item.texts]
    assert len(set(prompts)) == len(prompts)
    assert all(len(task.items) >= 3 for task in tasks)
    shown = {example.split("=>")[0] for task in tasks for example in task.examples}
    assert not shown & {prompt.split("=>")[0] for prompt in prompts}, "no prompt contains its own solution"


@pytest.mark.parametrize(
    "content",
    [
        "{broken",
        "[1]",
        '{"turns": []}',
        '{"turns": "text"}',
        '{"turns": [3]}',
        '{"category": 3, "turns": ["x"]}',
        '{"prompt": " "}',
        '{"promt": "x"}',
        "",
        b"\xff\xfe",
        "[" * 100_000,
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path: Path, content: str | bytes) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BenchError) as refused:
        load_tasks(str(file))
    assert "bad.jsonl" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_row_of_another_form_is_told_what_it_has(tmp_path: Path) -> None:
    file = tmp_path / "gsm8k.jsonl"
    file.write_text('{"prompt": "x"}\n{"question": "How many?", "answer": "3"}')
    with pytest.raises(BenchError, match=r"row 2 has neither 'turns' nor a 'prompt': it has 'question', 'answer'$"):
        load_tasks(str(file))
    file.write_text('{"prompt": "x"}\n{"prompt": "y"')
    with pytest.raises(BenchError, match=r"row 2 is not JSON$"):
        load_tasks(str(file))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('["hello"]', "is no object"),
        ('{"turns": "hello"}', "has 'turns' that are no list of texts"),
        ('{"turns": []}', "has 'turns' that are no list of texts"),
        ('{"turns": [{"role": "user"}]}', "has something other than text in 'turns'"),
        ('{"turns": [""]}', "has an empty text in 'turns'"),
        ('{"turns": ["x"], "category": 5}', "has something other than text in 'category'"),
        ('{"prompt": "\\ud800"}', "not valid Unicode"),
    ],
)
def test_a_row_is_told_what_is_wrong_with_it(tmp_path: Path, row: str, said: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(row)
    with pytest.raises(BenchError, match=r"mine.jsonl row 1 ") as refused:
        load_tasks(str(file))
    assert said in str(refused.value)


def test_a_prompt_may_name_its_task_as_a_category(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "x", "category": "qa"}\n{"prompt": "y", "task": "rag", "category": "qa"}')
    assert [task.name for task in load_tasks(str(file))] == ["qa", "rag"]


@pytest.mark.parametrize("named", ["", ",", "e2", "e2e,e2e", "/no/such/file.jsonl"])
def test_a_wrong_name_is_refused(named: str) -> None:
    with pytest.raises(BenchError):
        load_tasks(named)


def test_a_name_longer_than_any_files_is_refused_in_a_short_sentence() -> None:
    with pytest.raises(BenchError, match="there is no task 'xxx") as refused:
        load_tasks("x" * 300)
    assert "x" * 81 not in str(refused.value)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "huge.jsonl"
    with file.open("wb") as stream:
        stream.truncate(LARGEST_FILE_BYTES + 1)
    with pytest.raises(BenchError, match="larger"):
        load_tasks(str(file))
