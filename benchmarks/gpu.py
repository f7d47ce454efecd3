"""The GPU path on the device at hand: share of the memory roofline, cost of verifying, equal bits of verify and decode.

    python benchmarks/gpu.py [--layers 32] [--out benchmarks/gpu.json]

The engine's own model for GPUs in the shape of Llama-3-8B, with random bf16 weights, runs over the paged cache, one CUDA graph
per bucket of rows, and the embedded model answers through the engine. What is measured is written after every part. Without a
GPU it says so and exits 2; where verify and decode differ in a single bit it exits 1. `MEANING` explains the JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from gpu_answers import Answers
from gpu_model import DIM, HEADS, HIDDEN, KV_HEADS, MLP, VOCABULARY, RandomTensors
from torch.nn.functional import linear

from paceline import __version__
from paceline.bench.origin import commit
from paceline.cache.paged import PagedCache
from paceline.models.recording import captured
from paceline.params import SamplingParams
from paceline.sampling import Context
from paceline.sequence import Sequence
from paceline.step import Feed, Step, Verdict
from paceline.tree import DraftTree

PAGE, REPEATS = 64, 30
LAYERS_COMPARED, TOKENS_COMPARED = 4, 700
PROMPT_TOKENS = (512, 2048)
ROWS, CONTEXTS, BATCHES = (1, 4, 8, 16, 64), (1024, 32768), (1, 2, 4, 8, 16, 32, 64)
MEANING = {
    "copy_bytes_per_s": "read plus written by a device-to-device copy of 4 GiB: the bandwidth that shares refer to",
    "forward[]": "one captured forward of the whole step, logits included: rows per sequence (1: decoding; n: a tree of a root"
    " and n - 1 nodes), batch, context (committed tokens per sequence), bucket (rows of the recording: the next power of two, and"
    " the smallest that the engine records), seconds (median), same_bits (whether the root's logits have the bits that they have"
    " in the step of one row), floor_s ((bytes of weights + bytes of keys and values read once) / copy_bytes_per_s),"
    " share_of_roofline (floor_s / seconds), cost (seconds over those of one row at the same batch and context, one_row_s)",
    "attention[]": "one layer's tree attention alone, captured; kv_bytes are its keys and values read once",
    "prefill[]": "a prompt read in one step, seconds (median); library_products_s: cuBLAS's products of the same matrices alone",
    "sampling[]": "choose_on_device alone at temperature 1, with and without top-p 0.9; refused: rows it left to the host",
    "bits": "rows whose attention in a tree, and in a prefill chunk, has the very bits of decoding them alone, of rows compared",
    "model_bits": "logits of tokens in a prompt's chunk and in drafts of up to 32 sequences at once, against those of the same"
    " tokens decoded one by one, of the first layers of the model and its head: rows equal in all bits, of those compared",
    "engine[]": "whole answers of 128 tokens through the engine, one at a time or `batch` at once: the backend,"
    " whether its steps are recorded, how many answers equal those without drafts, tokens per step (tau), tokens_per_s (median of"
    " the turns), over_none (the same over those without drafts, in turns). Every draft has answered all of them before, until"
    " nothing more was recorded, ten times at most",
    "beside[]": "the grown model, greedy, one request at a time, through this engine and through transformers' generate as it"
    " comes (float16, its own cache; 5 tokens looked up; assisted by the embedded draft model on its own schedule), in turns",
    "left_out": "what did not fit the device's memory",
}


def seconds(call: Callable[[], Any]) -> float:
    """Median of single calls, by the device's clock; the L2 cache is overwritten before each call."""
    for _ in range(5):
        call()
    times, other = [], torch.empty(2**29, dtype=torch.uint8, device="cuda")
    for _ in range(REPEATS):
        other.zero_()
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        call()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) / 1000)
    return median(times)


def copied_bytes_per_s(device: torch.device) -> float:
    source = torch.empty(2**32, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source))


def tree_of(rows: int) -> DraftTree:
    """A root and rows - 1 nodes, two children per node."""
    return DraftTree(tuple(range(rows)), tuple((node - 1) // 2 if node else -1 for node in range(rows)))


def held(cache: PagedCache, batch: int, context: int) -> list[Sequence]:
    """Sequences with `context` committed tokens in the cache, whatever their pages contain, and without their root."""
    owners = [Sequence(key, (*range(1, context + 1), 0), SamplingParams(), key) for key in range(batch)]
    for owner in owners:
        cache.stage(Step.of([Feed(owner, 0, tuple(owner.tokens[:context]))]))
        cache.commit([Verdict()])
    return owners


def logits_of(model: Any, cache: PagedCache, feeds: list[Feed]) -> torch.Tensor:
    """The logits of a step, without committing it."""
    step = Step.of(feeds)
    cache.stage(step)
    return model.score(step, cache).logits


class Bench:
    """The measurements on one device."""

    def __init__(self, layers: int, device: torch.device) -> None:
        # Triton is imported here, where a device is known to exist
        from paceline.kernels.attention_tiling import Tiling
        from paceline.kernels.step_tables import SMALLEST, Extent, StepTables
        from paceline.kernels.tree_attention import tree_attention
        from paceline.models.device_weights import DeviceWeights
        from paceline.models.forms import form_of
        from paceline.models.fused import FusedModel
        from paceline.models.rotation import Rotation

        self.extents, self.tables, self.kernel = Extent, StepTables, tree_attention
        self.close = SMALLEST._replace(rows=1)
        self.tiling, self.device, self.layers = Tiling.of(HEADS, KV_HEADS, DIM, 2), device, layers
        self.division = self.tiling.division(HEADS, KV_HEADS)
        self.left_out: list[str] = []
        self.bandwidth = copied_bytes_per_s(device)
        tensors: Any = RandomTensors(layers, max(CONTEXTS) + 1024, device)
        form, longest = form_of(tensors.config), tensors.config.max_position_embeddings
        self.weights = DeviceWeights(form, tensors, Rotation(tensors.config, form.rotary), None, longest, device)
        self.model = FusedModel(self.weights, "llama-3-8b-shape", longest)
        rows_read = self.weights.embedding.nbytes + sum(
            table.nbytes for pair in self.weights.rotations.values() for table in pair
        )
        self.read_bytes = self.weights.held_bytes - rows_read

    def attend(self, query: torch.Tensor, cache: PagedCache, layer: int, tables: Any) -> torch.Tensor:
        pages = cache.layer(layer)
        return self.kernel(query, pages.keys, pages.values, tables, scale=DIM**-0.5, tiling=self.tiling)

    def staged(self, cache: PagedCache, feeds: list[Feed], least: Any = None) -> tuple[Step, Any]:
        """A staged step and its tables: of its exact size, or bucketed and no smaller than `least`."""
        step = Step.of(feeds)
        cache.stage(step)
        blocks = cache.blocks_of(step)
        extent = self.extents.of(step, blocks, cache.page_size, self.division, least)
        tables = self.tables(extent, cache.page_size, self.division, self.device)
        tables.load(step, blocks)
        return step, tables

    def fits(self, batch: int, context: int, layers: int) -> bool:
        needed = batch * (context + 2 * PAGE) * layers * 4 * KV_HEADS * DIM
        free = torch.cuda.mem_get_info(self.device)[0] - 4 * 2**30
        if needed > free:
            self.left_out.append(f"batch {batch} at {context} tokens over {layers} layers: {needed} bytes of keys and values")
        return needed <= free

    def cache_of(self, batch: int, context: int, layers: int) -> PagedCache:
        """A cache with small random numbers in all its pages."""
        cache = PagedCache(batch * ((context + 64) // PAGE + 2), PAGE)
        row = torch.zeros(1, KV_HEADS, DIM, dtype=torch.bfloat16, device=self.device)
        for layer in range(layers):
            cache.write(layer, torch.zeros(1, dtype=torch.int64, device=self.device), row, row)
            for store in cache.layer(layer).stores:
                store.normal_()
        return cache

    def forwards(self, batch: int, context: int, rows: tuple[int, ...]) -> list[dict[str, Any]]:
        """Times of whole forward passes of one batch and context."""
        if not self.fits(batch, context, self.layers):
            return []
        cache, found = self.cache_of(batch, context, self.layers), []
        owners = held(cache, batch, context)
        alone: tuple[float, torch.Tensor] | None = None
        for count in rows:
            step, tables = self.staged(cache, [Feed(o, context, (0,), tree_of(count)) for o in owners], self.model.smallest)
            numbers, kept = torch.zeros(2, 1, tables.extent.rows, dtype=torch.int64, device=self.device), list[torch.Tensor]()
            numbers[0, 0, : len(step.tokens)] = step.token_ids.to(self.device)
            numbers[1, 0, : len(step.tokens)] = step.positions.to(self.device)
            forward = self.model._over(cache, lambda _: tables)  # noqa: B023
            graph = captured(lambda: kept.append(self.model.run(numbers[0], numbers[1], forward)[0]))  # noqa: B023
            took = seconds(graph.replay)
            root = kept[-1][0].clone()
            one_s, decoded = alone = alone or (took, root)
            kv_bytes = batch * (context + count) * self.layers * 4 * KV_HEADS * DIM
            floor = (self.read_bytes + kv_bytes) / self.bandwidth
            found.append(
                {
                    "rows": count, "batch": batch, "context": context, "bucket": tables.extent.rows, "seconds": took,
                    "floor_s": floor, "share_of_roofline": floor / took, "one_row_s": one_s, "cost": took / one_s,
                    "same_bits": torch.equal(root, decoded),
                }
            )  # fmt: skip
            print(json.dumps(found[-1]))
            del graph
        return found

    def attention(self, batch: int, context: int) -> list[dict[str, Any]]:
        """Times of one layer's attention alone."""
        if not self.fits(batch, context, 1):
            return []
        cache, found = self.cache_of(batch, context, 1), []
        owners = held(cache, batch, context)
        for count in ROWS:
            _, tables = self.staged(cache, [Feed(o, context, (0,), tree_of(count)) for o in owners], self.close)
            query = torch.randn(tables.extent.rows, HEADS, DIM, dtype=torch.bfloat16, device=self.device)
            took = seconds(captured(lambda: self.attend(query, cache, 0, tables)).replay)  # noqa: B023
            kv_bytes = batch * (context + count) * 4 * KV_HEADS * DIM
            found.append(
                {
                    "rows": count, "batch": batch, "context": context, "seconds": took, "kv_bytes": kv_bytes,
                    "share_of_roofline": kv_bytes / self.bandwidth / took,
                }
            )  # fmt: skip
            print(json.dumps(found[-1]))
        return found

    def prefill(self) -> list[dict[str, Any]]:
        """Times of a prompt in one forward pass, launch by launch, and of a library's matrix products alone."""
        cache, found = self.cache_of(1, max(PROMPT_TOKENS), self.layers), []
        owner = Sequence(0, tuple(range(1, 2 * max(PROMPT_TOKENS))), SamplingParams(), 0)
        cache.release(0)
        for count in PROMPT_TOKENS:
            feed = [Feed(owner, 0, owner.tokens[:count], DraftTree.root(owner.tokens[count - 1]))]
            took = seconds(lambda: logits_of(self.model, cache, feed))  # noqa: B023
            rows = torch.randn(count, HIDDEN, dtype=torch.bfloat16, device=self.device)
            wide = torch.randn(count, MLP, dtype=torch.bfloat16, device=self.device)
            layer = self.weights.layers[0]
            ours = (layer.query_key_value, rows), (layer.out, rows), (layer.gate_up, rows), (layer.down, wide)
            library = sum(seconds(lambda: linear(given, one.weight)) for one, given in ours)  # noqa: B023
            found.append({"tokens": count, "seconds": took, "library_products_s": library * self.layers})
            print(json.dumps(found[-1]))
        return found

    def sampling(self) -> list[dict[str, Any]]:
        """Times of choosing tokens alone."""
        from paceline.kernels.fused_sampling import SamplingRows, choose_on_device

        found = []
        for count in ROWS:
            for top_p in (1.0, 0.9):
                params = SamplingParams(temperature=1.0, top_p=top_p)
                contexts = [Context(Sequence(row, (1,), params, row)) for row in range(count)]
                rows = SamplingRows.of(contexts, VOCABULARY, self.device)
                logits = torch.randn(count, VOCABULARY, device=self.device) * 4
                took = seconds(captured(lambda: choose_on_device(logits, rows)).replay)  # noqa: B023
                refused = int((choose_on_device(logits, rows) < 0).sum())
                found.append({"rows": count, "top_p": top_p, "seconds": took, "refused": refused})
                print(json.dumps(found[-1]))
        return found

    def bits(self) -> dict[str, int]:
        """Attention of every node of a tree, and of a chunk, compared with the same row decoded alone from committed keys."""
        compared = equal = 0
        for context in (60, 511, 1000, 4095):
            cache, tree = self.cache_of(4, context, 1), tree_of(31)
            owner = held(cache, 1, context)[0]
            rows = torch.randn(3, len(tree), HEADS, DIM, dtype=torch.bfloat16, device=self.device)
            query, keys, values = rows[0], rows[1, :, :KV_HEADS], rows[2, :, :KV_HEADS]

            def attended(nodes: tuple[int, ...], feed: Feed, cache: PagedCache = cache, rows: Any = (query, keys, values)):
                _, tables = self.staged(cache, [feed])
                here = torch.tensor(nodes, device=self.device)
                cache.write(0, tables.destinations, rows[1][here], rows[2][here])
                return self.attend(rows[0][here], cache, 0, tables)

            verified = attended(tuple(range(len(tree))), Feed(owner, context, (0,), tree))
            for node in range(len(tree)):
                path = (0, *tree.path(node))
                copy = Sequence(1, (*owner.tokens[:context], *path), SamplingParams(), 1)
                cache.fork(0, 1)
                chunk = attended(path, Feed(copy, context, path))
                for place, passed in enumerate(path):
                    cache.truncate(1, context + place)
                    alone = attended((passed,), Feed(copy, context + place, (passed,)))[0]
                    cache.commit([Verdict()])
                    compared += 2
                    equal += int(torch.equal(alone, verified[passed])) + int(torch.equal(alone, chunk[place]))
                cache.release(1)
        return {"compared": compared, "equal": equal}

    def model_bits(self) -> dict[str, int]:
        """Logits of the first layers of the model: every token of a text decoded alone, compared with the same token in a draft,
        in prompt chunks of many sizes, and batched with other sequences."""
        from paceline.models.fused import FusedModel

        weights = copy(self.weights)
        weights.layers = weights.layers[:LAYERS_COMPARED]
        model, text = FusedModel(weights, "some layers", 4096), torch.randint(VOCABULARY, (TOKENS_COMPARED,)).tolist()
        compared = equal = 0

        def compare(name: str, found: torch.Tensor, first: int) -> None:
            nonlocal compared, equal
            wanted = alone[first : first + len(found)]
            same = int((found == wanted).all(1).sum())
            compared, equal = compared + len(found), equal + same
            if same < len(found):
                print(f"{name}: {same} of {len(found)} rows from {first}, off by {(found - wanted).abs().max():.1e}")

        fed = partial(logits_of, model)
        cache, owner, rows = model.new_cache(), Sequence(0, text, SamplingParams(), 0), []
        for place, token in enumerate(text):
            rows.append(fed(cache, [Feed(owner, place, (token,), DraftTree.root(token))])[0])
            cache.commit([Verdict()])
        alone = torch.stack(rows)
        for size in (2, 7, 33, 64, 100, 300, 600):
            for begin in (0, 1, 500):
                if begin + size < len(text):
                    other = model.new_cache()
                    if begin:
                        fed(other, [Feed(owner, 0, tuple(text[:begin]))])
                        other.commit([Verdict()])
                    chunk = tuple(text[begin : begin + size])
                    found = fed(other, [Feed(owner, begin, chunk, DraftTree.root(chunk[-1]), prompt_logits=True)])
                    compare(f"a prompt's {size}", torch.cat([found[1:], found[:1]]), begin)
        for batch, drafted in product((1, 2, 5, 16, 32), (1, 4, 8)):
            lengths = [length for length in range(60, 60 + 17 * batch, 17) if length + drafted < len(text)]
            owners = [Sequence(1 + key, text[:length], SamplingParams(), 0) for key, length in enumerate(lengths)]
            for one in owners:
                cache.fork(0, one.key, len(one.tokens) - 1)
            trees = [DraftTree.chain(one.root, text[len(one.tokens) :][:drafted], "draft") for one in owners]
            logits = fed(cache, [Feed(o, len(o.tokens) - 1, (o.root,), tree) for o, tree in zip(owners, trees, strict=True)])
            for one, found in zip(owners, logits.split(drafted + 1), strict=True):
                compare(f"a draft of {drafted} beside {batch - 1}", found, len(one.tokens) - 1)
                cache.release(one.key)
        return {"compared": compared, "equal": equal, "layers": LAYERS_COMPARED}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/gpu.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py measures the GPU path, and torch sees no CUDA device here", file=sys.stderr)
        return 2
    report = measured(arguments.layers, arguments.out)
    bits = [report[part] for part in ("bits", "model_bits")]
    equal, compared = (sum(part[name] for part in bits) for name in ("equal", "compared"))
    steps = all(one["same_bits"] for one in report["forward"])
    print(f"{equal} of {compared} rows have the bits of decoding, roots of trees {'too' if steps else 'NOT'}: {arguments.out}")
    return 0 if equal == compared and steps else 1


@torch.inference_mode()
def measured(layers: int, out: Path) -> dict[str, Any]:
    """The whole report, written to `out` after every part."""
    import triton

    device = torch.device("cuda")
    bench = Bench(layers, device)
    report: dict[str, Any] = {
        "what": "a model in the shape of Llama-3-8B, random bf16 weights, in fused kernels over pages, recorded as CUDA graphs",
        "meaning": MEANING,
        "machine": torch.cuda.get_device_name(device),
        "layers": layers,
        "tiling": asdict(bench.tiling),
        "page_size": PAGE,
        "commit": commit(),
        "versions": {
            "paceline": __version__, "torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton.__version__,
            "python": platform.python_version(),
        },
        "copy_bytes_per_s": bench.bandwidth,
        "weight_bytes": bench.read_bytes,
        "left_out": bench.left_out,
        "attention": [],
        "forward": [],
        "engine": [],
    }  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    for name, part in parts(bench):
        found = part()
        if isinstance(found, list) and name in report:
            report[name] += found
        else:
            report[name] = found
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def parts(bench: Bench) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The measurements by name, the shortest and most important first."""
    yield "bits", bench.bits
    yield "model_bits", bench.model_bits
    for context in CONTEXTS:
        yield "attention", partial(bench.attention, 1, context)
        yield "forward", partial(bench.forwards, 1, context, ROWS)
    yield "sampling", bench.sampling
    for batch in BATCHES[1:]:
        yield "forward", partial(bench.forwards, batch, 1024, (1, 8))
    yield "prefill", bench.prefill
    answers = Answers()
    for temperature in (0.0, 1.0):
        yield "engine", partial(answers.of_the_embedded, temperature)
        yield "engine", partial(answers.of_the_grown, temperature)
    yield "beside", answers.beside_transformers


if __name__ == "__main__":
    sys.exit(main())
