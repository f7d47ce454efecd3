"""Tasks: named groups of prompts, from a JSONL file or built in. Results are grouped by their names.

A row of a file is either Spec-Bench's, {"question_id", "category", "turns": [...]}, where each turn follows the answer to the
previous one in the model's chat template, or {"prompt", "task"}, raw text, whose task may also be called its category. Category
names are kept, except that the eight of MT-Bench, if a file has them all, are merged into one task, as in Spec-Bench.

Source: Spec-Bench (Xia et al. 2024), section 4: multi-turn, translation, summarisation, QA, maths, retrieval-augmented.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Any

from paceline.bench.builtin import BUILT_IN, built_in
from paceline.bench.errors import BenchError
from paceline.registry import suggestion

ALL = "all tasks"
"""The name of the sum over all tasks."""
LARGEST_FILE_BYTES = 64 << 20
MOST_ROWS = 10_000
_MULTI_TURN = "multi-turn"
_OF_MULTI_TURN = frozenset({"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"})
"""Source: Zheng et al., MT-Bench (arXiv:2306.05685), section 2.2; Spec-Bench reports them as one."""


@dataclass(frozen=True)
class Item:
    """One question. texts: one or more user turns. chat: use the chat template, if the model has one."""

    texts: tuple[str, ...]
    chat: bool = False


@dataclass(frozen=True)
class Task:
    """Prompts of one kind. examples: solved examples (prompt with answer), which may be put before each prompt as context."""

    name: str
    items: tuple[Item, ...]
    examples: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """Digest of all texts, to tell prompts from others with the same name."""
        texts = [[item.chat, *item.texts] for item in self.items], self.examples
        return sha256(json.dumps(texts).encode()).hexdigest()


def load_tasks(named: str, limit: int | None = None, categories: str = "") -> list[Task]:
    """Tasks from a comma-separated list of built-in names and JSONL files, at most `limit` prompts of each. categories: a
    comma-separated list of the files' categories to use; all if it is empty.

    Raises BenchError if a name is unknown, or a file is missing, too large or has other rows than described above.
    """
    names = [name.strip() for name in named.split(",") if name.strip()]
    found: dict[str, Task] = {}
    files = {name: read_tasks(Path(name)) for name in names if name not in BUILT_IN}
    meant = {name.strip() for name in categories.split(",") if name.strip()}
    there = {task.name: None for tasks in files.values() for task in tasks}
    if missing := sorted(meant - there.keys()):
        raise BenchError(f"no file has the category '{missing[0]}'; {suggestion(missing[0], there)}")
    for name in names:
        of_file = [task for task in files.get(name, ()) if not meant or task.name in meant]
        for task in [_built_in(name)] if name in BUILT_IN else of_file:
            if task.name == ALL:
                raise BenchError(f"a task cannot be called '{ALL}': that is the name of their sum")
            if task.name in found:
                raise BenchError(f"'{name}' has a task '{task.name}', and so has another that is named: call it something else")
            found[task.name] = Task(task.name, task.items[:limit], task.examples)
    if not found:
        raise BenchError(f"no task is named: choose from {', '.join(BUILT_IN)}, or name a JSONL file")
    return list(found.values())


def _built_in(name: str) -> Task:
    prompts, examples = built_in(name)
    return Task(name, tuple(Item((prompt,)) for prompt in prompts), examples)


def read_tasks(file: Path) -> list[Task]:
    """The rows of a JSONL file, grouped by category in order of appearance. Raises BenchError."""
    # os.path.exists returns False for a name that is too long, Path.exists raises
    if not file.suffix and not os.path.exists(file):
        raise BenchError(f"there is no task '{str(file)[:80]}': choose from {', '.join(BUILT_IN)}, or name a JSONL file")
    try:
        with file.open("rb") as stream:
            # not checked by file size, which a device does not have
            read = stream.read(LARGEST_FILE_BYTES + 1)
        if len(read) > LARGEST_FILE_BYTES:
            raise BenchError(f"{file} is larger than {LARGEST_FILE_BYTES >> 20} MiB")
        # not splitlines(): JSON strings may contain U+2028 and similar characters
        lines = [line for line in read.decode("utf-8-sig").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"cannot read {file}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from error
    if not lines or len(lines) > MOST_ROWS:
        raise BenchError(f"{file} holds {len(lines)} rows: between 1 and {MOST_ROWS} can be run")
    groups: dict[str, list[Item]] = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BenchError(f"{file} row {number} is not JSON") from error
        try:
            name, item = _parsed(row, file.stem)
        except _RowError as error:
            raise BenchError(f"{file} row {number} {error}") from error
        groups.setdefault(name, []).append(item)
    if groups.keys() >= _OF_MULTI_TURN:
        # categories alternate, so that the first few items are of many kinds
        turns = zip_longest(*(groups.pop(name) for name in sorted(_OF_MULTI_TURN)))
        groups = {_MULTI_TURN: [item for turn in turns for item in turn if item is not None], **groups}
    return [Task(name, tuple(items)) for name, items in groups.items()]


class _RowError(Exception):
    """What is wrong with a row, as the end of a sentence."""


def _parsed(row: Any, otherwise: str) -> tuple[str, Item]:
    """A row's task and item. otherwise: the task of a row without one. Raises _RowError."""
    if not isinstance(row, dict):
        raise _RowError("is no object")
    if "turns" in row:
        turns = row["turns"]
        if not isinstance(turns, list) or not turns:
            raise _RowError("has 'turns' that are no list of texts")
        name = _text(row["category"], "category") if "category" in row else otherwise
        return name, Item(tuple(_text(turn, "turns") for turn in turns), chat=True)
    if "prompt" not in row:
        has = f": it has {', '.join(map(repr, row))}"[:200] if row else ""
        raise _RowError(f"has neither 'turns' nor a 'prompt'{has}")
    if isinstance(category := row.get("category"), str) and category.strip():
        otherwise = category
    return _text(row["task"], "task") if "task" in row else otherwise, Item((_text(row["prompt"], "prompt"),))


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise _RowError(f"has something other than text in '{field}'")
    if not value.strip():
        raise _RowError(f"has an empty text in '{field}'")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _RowError(f"has half of a surrogate pair in '{field}', which is not valid Unicode") from error
    return value
