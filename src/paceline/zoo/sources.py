"""Training documents from files: the built-in mixture, or any text and JSONL files.

Every document is a string; the packer adds `<|endoftext|>`. Tagged tasks follow one spacing rule: the
prompt ends with its tag and no blank (`=> text`, `=> sql`, `=> answer`), the answer begins after
exactly one blank. With the tokenizer of this recipe, the prompt's tokens are then always the first
tokens of the whole document.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.zoo.chat import Exchange, conversations
from paceline.zoo.errors import RecipeError

MIXTURE: dict[str, float] = {
    "e2e": 0.22,
    "sql": 0.22,
    "gsm8k": 0.14,
    "code": 0.13,
    "stories": 0.08,
    "novels": 0.13,
    "chat": 0.08,
}
"""Share of the training tokens per domain."""

FILES = (
    "e2e/train.jsonl",
    "e2e/dev.jsonl",
    "wikisql/train.jsonl",
    "wikisql/dev.jsonl",
    "gsm8k/train.jsonl",
    "python_algorithms/thealgorithms_py.jsonl.gz",
    "tinystories/val_decoded.txt",
    "novels100/novels100_train.txt.gz",
)
"""The files of the built-in mixture, relative to the data folder."""

HELD_OUT_SHARE = 0.02
PASSAGE_CHARACTERS = 3_600  # about one row of 1,024 tokens of a novel
STORY_IN_CHAT_CHARACTERS = 700  # so that a told story fits a short row


@dataclass(frozen=True)
class Corpus:
    """Documents per domain, and the files they were read from."""

    train: dict[str, list[str]]
    held_out: dict[str, list[str]]
    shares: dict[str, float]
    files: dict[str, str] = field(default_factory=dict)
    """File name to SHA-256."""


TAGGED = {"e2e": "mr: {} => text", "sql": "question: {} => sql", "gsm8k": "problem: {} => answer"}
"""Prompts of the tagged tasks."""


def official_spelling(meaning: str) -> str:
    """The spelling of the published E2E files, with the blanks that these lost or gained."""
    return re.sub(r"£ (?=\d)", "£", meaning).replace("customerrating", "customer rating").replace("£20 - 25", "£20-25")


def without_calculator(answer: str) -> str:
    """Remove GSM8K's `<<48/2=24>>` annotations for a calculator tool, which does not exist here; `#### 24` stays."""
    return re.sub(r"<<[^>]*>>", "", answer)


def is_held_out(document: str) -> bool:
    """Whether a document is held out: two in a hundred, by content, so that the choice does not depend on their order."""
    digest = hashlib.sha256(document.encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def split(documents: list[str]) -> tuple[list[str], list[str]]:
    """Train and held-out part by `is_held_out`."""
    return (
        [document for document in documents if not is_held_out(document)],
        [document for document in documents if is_held_out(document)],
    )


def read_text(path: Path) -> str:
    """The UTF-8 text of a file, gzipped or plain."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except FileNotFoundError:
        raise RecipeError(f"there is no file {path}") from None
    except UnicodeDecodeError:
        raise RecipeError(f"{path} is not UTF-8 text") from None
    except (OSError, EOFError, zlib.error) as error:
        raise RecipeError(f"{path} cannot be read: {error}") from None


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file."""
    # not splitlines(): JSON strings may contain U+2028 and similar characters, which are not line ends of JSONL
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise RecipeError(f"{path} line {number} is not JSON") from None
        if not isinstance(row, dict):
            raise RecipeError(f"{path} line {number} is not a JSON object")
        if "\\u" in line and not _encodable(row):
            raise RecipeError(f"{path} line {number} holds half of a surrogate pair, which is no character")
        yield row


def _encodable(row: dict[str, Any]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def column(path: Path, *names: str) -> list[tuple[str, ...]]:
    """The named text fields of every row."""
    found = []
    for number, row in enumerate(read_rows(path), start=1):
        values = tuple(row.get(name) for name in names)
        if not all(isinstance(value, str) for value in values):
            raise RecipeError(f"{path} row {number} lacks the text field {' or '.join(names)}")
        found.append(values)
    return found


def single_blanks(text: str) -> str:
    """Replace runs of blanks inside a line, which have no meaning, by single ones."""
    return re.sub(r"(?<=\S) {2,}", " ", text)


def passages(text: str) -> list[str]:
    """A long text cut at line ends into pieces of about `PASSAGE_CHARACTERS`."""
    pieces, lines, size = [], [], 0
    for line in text.split("\n"):
        lines.append(line)
        size += len(line) + 1
        if size >= PASSAGE_CHARACTERS:
            pieces.append("\n".join(lines).strip())
            lines, size = [], 0
    pieces.append("\n".join(lines).strip())
    return [piece for piece in pieces if piece]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def built_in(data: Path, seed: int) -> Corpus:
    """The mixture that made the shipped models, from the files under `data`."""
    if not data.is_dir():
        raise RecipeError(f"there is no data folder {data} (name one with --data, or files with --text)")
    missing = [name for name in FILES if not (data / name).is_file()]
    if missing:
        raise RecipeError(f"the data folder {data} lacks {', '.join(missing)}")

    tasks_train: dict[str, list[Exchange]] = {}
    tasks_held_out: dict[str, list[Exchange]] = {}
    # every fourth in the official spelling, since users may type either
    tasks_train["e2e"] = [
        (mr if number % 4 else official_spelling(mr), ref)
        for number, (mr, ref) in enumerate(column(data / FILES[0], "mr", "ref"))
    ]
    tasks_held_out["e2e"] = [(mr, ref) for mr, ref in column(data / FILES[1], "mr", "ref")]
    tasks_train["sql"] = [(ask, sql) for ask, sql in column(data / FILES[2], "question", "sql")]
    tasks_held_out["sql"] = [(ask, sql) for ask, sql in column(data / FILES[3], "question", "sql")]
    problems = [(q, without_calculator(a)) for q, a in column(data / FILES[4], "question", "answer")]
    tasks_train["gsm8k"] = [pair for pair in problems if not is_held_out(pair[0])]
    tasks_held_out["gsm8k"] = [pair for pair in problems if is_held_out(pair[0])]

    code_train, code_held_out = split([text for (text,) in column(data / FILES[5], "text")])
    stories = [story.strip() for story in read_text(data / FILES[6]).split("<|endoftext|>")]
    stories_train, stories_held_out = split([story for story in stories if story])
    # The last books are held out as a whole, since passages of one book are too similar; the first of these begins in training.
    novels = passages(single_blanks(read_text(data / FILES[7])))
    last = int(len(novels) * (1 - HELD_OUT_SHARE))

    train, held_out = (
        {name: [f"{TAGGED[name].format(ask)} {answer}" for ask, answer in pairs] for name, pairs in tasks.items()}
        for tasks in (tasks_train, tasks_held_out)
    )
    train |= {"code": code_train, "stories": stories_train, "novels": novels[:last]}
    held_out |= {"code": code_held_out, "stories": stories_held_out, "novels": novels[last:]}

    def short(texts: list[str]) -> list[Exchange]:
        return [("", story) for story in texts if len(story) <= STORY_IN_CHAT_CHARACTERS]

    tasks_train["stories"] = short(stories_train)
    tasks_held_out["stories"] = short(stories_held_out)
    train["chat"] = conversations(tasks_train, 12_000, random.Random(f"chat {seed}"))
    held_out["chat"] = conversations(tasks_held_out, 300, random.Random(f"held-out chat {seed}"))
    return Corpus(train, held_out, MIXTURE, {name: sha256(data / name) for name in FILES})


def from_files(paths: list[Path]) -> Corpus:
    """Any text files (cut into passages) and JSONL files (`text`, or `prompt` and `completion`)."""
    documents: list[str] = []
    for path in paths:
        if ".jsonl" in path.suffixes:
            for number, row in enumerate(read_rows(path), start=1):
                fields = ("text",) if "text" in row else ("prompt", "completion")
                values = [row.get(name) for name in fields]
                if not all(isinstance(value, str) for value in values):
                    raise RecipeError(f"{path} row {number} needs the field 'text', or 'prompt' and 'completion'")
                documents.append("".join(str(value) for value in values))
        else:
            for part in read_text(path).split("<|endoftext|>"):
                documents.extend(passages(part))
    documents = [document for document in documents if document.strip()]
    if not documents:
        raise RecipeError(f"there is no text in {', '.join(str(path) for path in paths)}")
    train, held_out = split(documents)
    # with few documents, all may fall on one side by chance; a single document is not held out
    if not held_out and len(train) > 1:
        held_out = [train.pop()]
    if not train:
        train = [held_out.pop()]
    names = [path.name for path in paths]
    hashes = {path.name if names.count(path.name) == 1 else str(path): sha256(path) for path in paths}
    return Corpus(train={"text": train}, held_out={"text": held_out}, shares={"text": 1.0}, files=hashes)
