"""Cost of a step without the model: the real engine on a fake target that answers at once.

    python benchmarks/step_overhead.py [--steps N] [--turns N] [--out FILE.json] [--plot FILE.png] [--lookup-plot FILE.png]

Parts are medians over the steps of the quietest turn, in microseconds: draft, stage (the cache makes room, the rows are laid
out), verify, commit, and other (scheduler, stops, text and the engine's loop); the fake forward pass is left out. Several
vocabulary sizes are run: the cost that depends on the vocabulary is the difference to the smallest. The lookups of `ngram`,
`suffix` and `datastore` are timed alone, by the length of the searched text, or for the datastore of the sequence's own text.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence as Many
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

from paceline import SamplingParams
from paceline.bench.origin import origin
from paceline.cache.base import Branching, KVCache
from paceline.cache.dense import DenseCache
from paceline.datastore import Datastore, build
from paceline.drafters.base import Drafter
from paceline.drafters.datastore import DatastoreDrafter, Options as DatastoreOptions
from paceline.drafters.ngram import NgramDrafter, Options
from paceline.drafters.none import NullDrafter
from paceline.drafters.suffix import Options as SuffixOptions, SuffixDrafter
from paceline.engine.engine import Engine
from paceline.engine.scheduler import Limits
from paceline.learning.costs import Timings
from paceline.models.base import LanguageModel, Scores
from paceline.models.embedded import DEFAULT
from paceline.models.load import resolve
from paceline.models.tokenizer import Tokenizer
from paceline.policies.fixed import FixedPolicy
from paceline.sequence import Sequence
from paceline.speculative import Speculative
from paceline.step import Step, Verdict
from paceline.tree import DraftTree
from paceline.verifiers.match import Match

VOCABULARIES = (64, 4096, 32000)
BATCHES = (1, 4, 16)
TEXT_TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
STORED_TOKENS = 2**18
PARTS = ("draft", "stage", "verify", "commit", "other")
PHRASES, WORDS, PEAK = 24, 64, 14.0


def script(length: int) -> list[int]:
    """A text of short phrases in random order, in which a lookup is often right and often wrong."""
    chance = Random(0)
    phrases = [[chance.randrange(WORDS) for _ in range(chance.randint(4, 12))] for _ in range(PHRASES)]
    tokens: list[int] = []
    while len(tokens) < length:
        tokens += chance.choice(phrases)
    return tokens[:length]


class ScriptedTarget(LanguageModel):
    """Prefers the script's next word at every position; a forward pass only copies prepared rows of logits."""

    name, weights, context_length = "scripted", "fp32", 2**20
    branching, eos_token_ids, weights_bytes = Branching.TREE, frozenset(), 0

    def __init__(self, vocab_size: int, length: int) -> None:
        self.vocab_size = vocab_size
        self._next = [*script(length)[1:], *[0] * 64]
        self._rows = torch.randn(WORDS, vocab_size, generator=torch.Generator().manual_seed(0))
        self._rows[range(WORDS), range(WORDS)] = PEAK
        self.score_s = 0.0

    def new_cache(self) -> KVCache:
        return DenseCache()

    def score(self, step: Step, cache: KVCache, taps: Iterable[int] = ()) -> Scores:
        # computing the layout for a forward pass counts as staging
        positions = [step.row_positions[row] for row in step.wanted_rows]
        began = perf_counter()
        scores = Scores(self._rows[[self._next[position] for position in positions]])
        self.score_s = perf_counter() - began
        return scores


class Recording(FixedPolicy):
    """Keeps the timings that policies get."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: Timings | None = None

    def observe(self, sequences: Many[Sequence], trees: Many[DraftTree], verdicts: Many[Verdict], timings: Timings) -> None:
        self.latest = timings


def measured(drafter: Drafter, vocab_size: int, batch: int, temperature: float, steps: int) -> dict[str, float]:
    """Medians of one case: microseconds by part and in total, and tau."""
    length = 512 + 8 * steps
    target, policy = ScriptedTarget(vocab_size, length), Recording()
    engine = Engine(Speculative(target, drafter, Match(), policy), Tokenizer(resolve(DEFAULT)), Limits(batch, cache_tokens=2**22))
    params = SamplingParams(max_tokens=2**20, temperature=temperature, seed=1)
    sequences = [engine.add(script(length)[: 256 + key], params) for key in range(batch)]
    while any(sequence.generated_tokens < 16 for sequence in sequences):
        engine.step()
    seen: dict[str, list[float]] = {part: [] for part in (*PARTS, "total")}
    for _ in range(steps):
        began = perf_counter()
        engine.step()
        wall_s = perf_counter() - began
        took = policy.latest
        assert took is not None
        inside = {
            "draft": took.draft_s, "stage": took.forward_s - target.score_s, "verify": took.verify_s, "commit": took.commit_s,
        }  # fmt: skip
        inside["other"] = wall_s - target.score_s - sum(inside.values())
        inside["total"] = wall_s - target.score_s
        for part, seconds in inside.items():
            seen[part].append(seconds * 1e6)
    tau = sum(s.speculation.emitted_tokens for s in sequences) / sum(s.speculation.steps for s in sequences)
    engine.abort_all()
    return {**{part: round(median(values), 1) for part, values in seen.items()}, "tau": round(tau, 2)}


def drafters() -> dict[str, Drafter]:
    return {"none": NullDrafter(), "ngram": NgramDrafter(Options())}


def parts(steps: int, turns: int) -> list[dict[str, object]]:
    cases = [(v, 1, t) for v in VOCABULARIES for t in (0.0, 1.0)] + [(4096, batch, 0.0) for batch in BATCHES[1:]]
    quietest: dict[tuple[str, int, int, float], dict[str, float]] = {}
    for _ in range(turns):
        for case in cases:
            for name, drafter in drafters().items():
                took = measured(drafter, *case, steps)
                best = quietest.setdefault((name, *case), took)
                if took["total"] < best["total"]:
                    quietest[name, *case] = took
    rows = []
    for (name, vocab_size, batch, temperature), took in quietest.items():
        rows.append({"drafter": name, "vocabulary": vocab_size, "batch": batch, "temperature": temperature, **took})
        print(" ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return rows


def stored(folder: Path) -> Datastore:
    """A datastore of the same phrases."""
    rows = folder / "rows.jsonl"
    rows.write_text(json.dumps({"text": " ".join(map(str, script(STORED_TOKENS)))}) + "\n")
    build([rows], folder / "store", lambda text: [*map(int, text.split())], WORDS, "script", lambda *_: None)
    return Datastore.open(folder / "store")


def looked_up(name: str, drafter: Drafter, length: int, repeats: int) -> dict[str, str | float]:
    """Median microseconds of `propose` after four new tokens, on a text of `length` tokens, and bytes of its index per token."""
    text = script(length + 4 * repeats)
    sequence = Sequence(0, tuple(text[:length]), SamplingParams(), seed=0)
    drafter.propose([sequence], [drafter.budget])
    held = drafter.sequence_bytes / length
    seen: list[float] = []
    for low in range(length, length + 4 * repeats, 4):
        sequence.commit(tuple(text[low : low + 4]), ("",) * 4)
        began = perf_counter()
        drafter.propose([sequence], [drafter.budget])
        seen.append((perf_counter() - began) * 1e6)
    told = {"text_tokens": length, "propose_us": round(median(seen), 2), "held_bytes_per_token": round(held, 1)}
    return {"drafter": name, **told}


def look_ups(repeats: int, turns: int) -> list[dict[str, str | float]]:
    rows: list[dict[str, str | float]] = []
    with TemporaryDirectory() as folder:
        store = stored(Path(folder))
        kinds: dict[str, Callable[[], Drafter]] = {
            "ngram": lambda: NgramDrafter(Options()),
            "suffix": lambda: SuffixDrafter(SuffixOptions()),
            "datastore": lambda: DatastoreDrafter(store, -1, WORDS, DatastoreOptions(path=folder)),
        }
        for name, kind in kinds.items():
            seen = [[looked_up(name, kind(), length, repeats) for length in TEXT_TOKENS] for _ in range(turns)]
            rows += [min(column, key=lambda row: row["propose_us"]) for column in zip(*seen, strict=True)]
    for row in rows:
        print(" ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return rows


def plot_parts(rows: Many[dict[str, object]], path: Path) -> None:
    from matplotlib import pyplot

    alone = [row for row in rows if row["batch"] == 1]
    figure, axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
    left = [0.0] * len(alone)
    labels = [f"{r['drafter']}, {'greedy' if r['temperature'] == 0 else 'sampled'}, {r['vocabulary']}" for r in alone]
    for part in PARTS:
        widths = [float(str(row[part])) for row in alone]
        axes.barh(labels, widths, left=left, label=part)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("microseconds per step at batch 1, beside the model (drafter, sampling, vocabulary)")
    axes.legend()
    _save(figure, path)


def plot_look_ups(rows: Many[dict[str, str | float]], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for name in dict.fromkeys(row["drafter"] for row in rows):
        mine = [row for row in rows if row["drafter"] == name]
        axes.plot([row["text_tokens"] for row in mine], [row["propose_us"] for row in mine], marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens of the text so far")
    axes.set_ylabel("microseconds per proposal")
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


def _save(figure: object, path: Path) -> None:
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    assert isinstance(figure, Figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--lookup-plot", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows, found = parts(arguments.steps, arguments.turns), look_ups(100, arguments.turns)
    if arguments.out:
        report = {
            "what": "a step beside the model, and lookups by text length: microseconds, medians in the quietest turn",
            "argv": sys.argv[1:],
            "threads": 1,
            **origin(),
            "steps": rows,
            "look_ups": found,
        }
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if arguments.plot or arguments.lookup_plot:
        import matplotlib

        matplotlib.use("Agg")
    if arguments.plot:
        plot_parts(rows, arguments.plot)
    if arguments.lookup_plot:
        plot_look_ups(found, arguments.lookup_plot)


if __name__ == "__main__":
    main()
