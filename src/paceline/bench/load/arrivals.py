"""Arrivals: due times of requests, from a Poisson process or a trace, and the lengths of a trace's requests.

Source: traces of the Azure LLM inference service of 2023 (Patel et al. 2024, Splitwise), CSV with the columns TIMESTAMP,
ContextTokens and GeneratedTokens.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

import numpy as np

from paceline.bench.errors import BenchError

LARGEST_FILE_BYTES = 1 << 30
_MOST_TOKENS = 1 << 31
_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def poisson(rate: float, count: int, seed: int) -> tuple[float, ...]:
    """Seconds at which `count` requests are due, `rate` a second on average, the first at 0.

    The same seed gives the same process at every rate, only scaled in time, so that rates can be compared.
    """
    gaps = np.random.default_rng(seed).exponential(1.0, count - 1)
    return (0.0, *(np.cumsum(gaps) / rate).tolist())


@dataclass(frozen=True)
class Traced:
    """One request of a trace. due_s: seconds after the first one."""

    due_s: float
    prompt_tokens: int
    tokens: int


def read_trace(file: Path, count: int) -> list[Traced]:
    """The first `count` requests of a trace. Raises BenchError."""
    try:
        if file.stat().st_size > LARGEST_FILE_BYTES:
            raise BenchError(f"{file} is larger than {LARGEST_FILE_BYTES >> 30} GiB")
        if not file.is_file():
            # a device may have no end
            raise BenchError(f"{file} is no file")
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = list(islice(_rows(file, csv.DictReader(lines)), count))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BenchError(f"cannot read {file}: {getattr(error, 'strerror', None) or 'it is not CSV in UTF-8'}") from error
    if not rows:
        raise BenchError(f"{file} holds no request")
    first = min(moment for moment, _, _ in rows)
    found = [Traced((moment - first).total_seconds(), prompt, answer) for moment, prompt, answer in rows]
    return sorted(found, key=lambda traced: traced.due_s)


def _rows(file: Path, reader: csv.DictReader[str]) -> Iterator[tuple[datetime, int, int]]:
    if not set(_COLUMNS) <= set(reader.fieldnames or ()):
        raise BenchError(f"{file} has no columns {', '.join(_COLUMNS)}")
    for number, row in enumerate(reader, 2):
        try:
            # the trace has seven digits of a second's fraction, datetime reads six
            moment = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26]).replace(tzinfo=None)
            prompt, answer = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except (ValueError, AttributeError, TypeError) as error:
            raise BenchError(f"{file} line {number} is no time with two numbers of tokens") from error
        if prompt < 0 or answer < 0:
            raise BenchError(f"{file} line {number} has less than no tokens")
        if max(prompt, answer) > _MOST_TOKENS:
            raise BenchError(f"{file} line {number} has more tokens than the {_MOST_TOKENS} that a request may have")
        yield moment, prompt, answer
