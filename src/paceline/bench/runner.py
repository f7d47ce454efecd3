"""Runner: one run of `paceline bench`, from settings to its record."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from paceline.bench.batches import batch_rows
from paceline.bench.contest import Decoder, DecoderFailed, Rules, contest
from paceline.bench.curves import FORWARDS, PREFILL, ROWS, VERIFY_CONTEXT, verify_curve
from paceline.bench.errors import BenchError
from paceline.bench.files import without_folders
from paceline.bench.grow import grown
from paceline.bench.memory import peak_of_answering
from paceline.bench.mode import PLAIN_MODE, Mode, check_grown, check_modes, draft_model, modes_of
from paceline.bench.origin import origin
from paceline.bench.ours import PLAIN, EngineDecoder
from paceline.bench.peers.base import Material, Peer, PeerDecoder, guarded
from paceline.bench.peers.host import HostedPeer
from paceline.bench.prompts import Prepared, Preparer
from paceline.bench.reading import Reading
from paceline.bench.report import against_peers, speedups, task_rows, with_total
from paceline.bench.settings import Settings
from paceline.bench.together import Together
from paceline.compose import automatic
from paceline.engine.llm import LLM
from paceline.engine.measure import ModelForward, some_tokens
from paceline.kernels.native.threads import CONTENTION
from paceline.machine import free_bytes
from paceline.models.base import WEIGHTS, LanguageModel, check_formats
from paceline.models.checkpoint import inspected, name_of
from paceline.models.embedded import DEFAULT
from paceline.models.load import resolve
from paceline.models.native import NativeModel, runs_here
from paceline.models.tokenizer import Tokenizer
from paceline.params import SamplingParams
from paceline.torch_threads import usable

Watch = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Called with the name of a stage and its number of parts; yields a function to call after each part."""


def run(settings: Settings, watch: Watch) -> dict[str, Any]:
    """Measure, and return the record. Raises BenchError, ModelError, SpecError, UnknownMethod, RequestError, and the errors for
    which the engine gives up a request."""
    with TemporaryDirectory(prefix="paceline-bench-") as work:
        bench = _Run(settings, Path(work), watch)
        try:
            return bench.record()
        finally:
            bench.close()


class _Run:
    """The model, this engine's decoders and the peers, for as long as one run lasts."""

    def __init__(self, settings: Settings, work: Path, watch: Watch) -> None:
        self.settings, self.work, self.watch = settings, work, watch
        check_formats(settings.weights, settings.kv_cache)
        check_modes(settings)
        self.threads = settings.threads or usable()
        torch.set_num_threads(self.threads)
        self._contended_before = CONTENTION.times
        self.source = resolve(settings.model if settings.model is not None else DEFAULT)
        self.path, self.growth = self.source, None
        modes = modes_of(settings, self.source)
        if settings.growth is not None:
            check_grown(modes, self.source)
            self.path = work / f"{Path(name_of(self.source)).name}-grown"
            with watch("growing the model", 1):
                grown(self.source, self.path, settings.growth)
            self.growth = {"from": name_of(self.source), **asdict(settings.growth)}
        with watch("loading the model", 1):
            batch = max(8, *settings.batches, 0)
            # prefix caching off: every answer is timed with its whole prompt
            self.llm = LLM(
                str(self.path),
                "none",
                weights=settings.weights,
                kv_cache=settings.kv_cache,
                batch=batch,
                shortest_prefix=sys.maxsize,
                lossy=settings.lossy,
            )
        # resolved for the original model, also if it was grown
        self.automatic = automatic(str(self.source))
        self.modes = {PLAIN: PLAIN_MODE}
        self.ours = {PLAIN: EngineDecoder(PLAIN, self.llm.engine, settings.temperature, settings.seed)}
        for mode in modes:
            self._add(mode)
        self.target: LanguageModel = self.llm.target
        self.rules = Rules(settings.max_tokens, settings.repeats, self.target.eos_token_ids)
        self.longest = self.llm.engine.longest
        self.together: Together | None = None
        self.peers: dict[str, Peer] = {}
        self.peers_draft: Path | None = None
        self.failures: dict[str, str] = {}
        self.theirs: dict[str, PeerDecoder] = {}
        try:
            self._load_peers()
        except BaseException:
            # no one else has a reference to end the peers that are loaded
            self.close()
            raise

    def _add(self, mode: Mode) -> None:
        """Add a decoder. Raises RequestError for a lossy verifier without --lossy."""
        self.llm.use(mode.spec, mode.policy, verify=mode.verify)
        temperature, seed = self.settings.temperature, self.settings.seed
        keeps = self.llm.keeps(SamplingParams(temperature=temperature))
        self.modes[mode.name] = mode
        self.ours[mode.name] = EngineDecoder(mode.name, self.llm.engine, temperature, seed, keeps)

    def _load_peers(self) -> None:
        weights = self.target.weights if self.target.weights in WEIGHTS else "fp32"
        self.peers_draft = self._peers_draft() if self.settings.peers else None
        material = Material(
            self.path, self.peers_draft, self.work, weights, self.longest, self.target.eos_token_ids, self.threads
        )
        for name in self.settings.peers:
            with self.watch(f"loading {name}", 1):
                try:
                    peer = self.peers[name] = guarded(lambda name=name: HostedPeer(name, material))
                except DecoderFailed as error:
                    self.failures[name] = str(error)
                    continue
                for mode, load in peer.modes().items():
                    try:
                        decoder = PeerDecoder(peer, mode, load)
                        self.theirs[decoder.name] = decoder
                    except DecoderFailed as error:
                        self.failures[f"{name} {mode}"] = str(error)

    def _peers_draft(self) -> Path | None:
        """The draft model of the peers: the one used here, unless its vocabulary differs, which no peer can translate."""
        draft = draft_model(self.modes.values(), self.source)
        if draft is None or self.llm.tokenizer.same_vocabulary(Tokenizer(draft)):
            return draft
        self.failures["the draft model of peers"] = f"the tokenizer of '{name_of(draft)}' is not the target's"
        return None

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()

    def record(self) -> dict[str, Any]:
        settings = self.settings
        preparer = Preparer(
            self.llm.tokenizer, self.target, self.longest, self.ours[PLAIN], settings.max_tokens, settings.context_tokens
        )
        with self.watch("preparing prompts", len(settings.tasks)) as advance:
            prepared = list[Prepared]()
            for task in settings.tasks:
                prepared.append(preparer(task))
                advance()
            tasks = [task for task in prepared if task.prompts]
            if not tasks:
                raise BenchError(f"no prompt leaves room for {settings.max_tokens} tokens in {self.longest}")
        self.together = Together(self.threads) if self.threads > 1 and runs_here() else None
        rows = with_total([row for task in tasks for row in self._contested(task)])
        held = max(decoder.held_bytes for decoder in self.ours.values())
        batches = [row for task in tasks for size in settings.batches for row in self._batched(task, size)]
        plain = [row for row in rows if row["peer"] is None]
        verify_cost, prefill = self._verify_cost(), self._prefill()
        self._judge_threads()
        memory = self._memory(max((prompt for task in tasks for prompt in task.prompts), key=len), held)
        parameters = inspected(self.path).parameters
        return {
            "kind": "paceline bench",
            **origin(),
            "argv": sys.argv[1:],
            "threads": self.threads,
            "contended": CONTENTION.times - self._contended_before,
            "lost": self._lost(),
            "together": self.together and self.together.record,
            "model": {
                "name": name_of(self.source),
                "parameters": parameters,
                "weights": self.target.held,
                "sampled_sha256": inspected(self.source).sampled_sha256(),
            },
            "grown": self.growth,
            "settings": {
                "max_tokens": settings.max_tokens,
                "repeats": settings.repeats,
                "context_tokens": settings.context_tokens,
                "drafts": list(self.ours)[1:],
                "modes": {name: mode.recorded() for name, mode in self.modes.items()},
                "auto": without_folders(self.automatic),
                "lossy": settings.lossy,
                "temperature": settings.temperature,
                "seed": settings.seed,
                "name": settings.name,
            },
            "tasks": {
                one.name: {"prompts": len(one.prompts), "left_out": one.left_out, "sha256": task.sha256}
                for one, task in zip(prepared, settings.tasks, strict=True)
            },
            "rows": rows,
            "speedup": speedups(rows),
            "tau": _by_task(plain, lambda row: row["tau"]),
            "acceptance_by_depth": _by_task(plain, _acceptance),
            "equal": all(row["equal_prompts"] == row["prompts"] for row in (*plain, *batches) if row["keeps"] == "text"),
            "verify_cost": verify_cost,
            "prefill": prefill,
            "batches": batches,
            "peers": {
                name: {"version": peer.version, "weights": peer.weights, "options": {**peer.options}, "stopped_between": True}
                for name, peer in self.peers.items()
            },
            "peers_draft": self.peers_draft and name_of(self.peers_draft),
            "failed": self.failures,
            "not_installed": list(settings.absent),
            "against_peers": against_peers(rows),
            "memory": memory,
        }

    def _lost(self) -> float | None:
        """The share of this engine's decoding time in which the decoding thread had no core; None if it may also wait for other
        things."""
        took_s, ran_s = (sum(getattr(one, name) for one in self.ours.values()) for name in ("took_s", "ran_s"))
        return max(1.0 - ran_s / took_s, 0.0) if isinstance(self.target, NativeModel) else None

    def _contested(self, task: Prepared) -> list[dict[str, Any]]:
        self._judge_threads()
        decoders: list[Decoder] = [*self.ours.values(), *self.theirs.values()]
        turns = 1 + self.rules.repeats * len(task.prompts)
        with self.watch(f"decoding {task.name}", turns * len(decoders)) as advance:
            tallies = contest(decoders, task.prompts, self.rules, advance)
        peers = {name: decoder.peer for name, decoder in self.theirs.items()}
        return task_rows(task, tallies, peers, {name: decoder.keeps for name, decoder in self.ours.items()})

    def _judge_threads(self) -> None:
        """Measure again how much work the threads do together."""
        if self.together is not None:
            self.together()

    def _batched(self, task: Prepared, size: int) -> list[dict[str, Any]]:
        decoders = list(self.ours.values())
        with self.watch(f"decoding {task.name}, batch {size}", self.rules.repeats * len(decoders)) as advance:
            return [{"task": task.name, **row} for row in batch_rows(decoders, task.prompts, size, self.rules, advance)]

    def _verify_cost(self) -> dict[str, Any]:
        """Milliseconds of a forward pass by rows, and relative to one row; for this engine and the peers that support it."""
        context = max(min(VERIFY_CONTEXT, self.longest - max(ROWS)), 0)
        rows = [n for n in ROWS if context + n <= self.longest]
        forwards: dict[str, Callable[[int], float]] = {"paceline": ModelForward(self.target, context, max(ROWS))}
        failures: dict[str, str] = {}
        for name, peer in self.peers.items():
            try:
                forward = guarded(lambda peer=peer: peer.forward(context))
                if forward is not None:
                    forwards[name] = forward
            except DecoderFailed as error:
                failures[name] = str(error)
        with self.watch("verify cost", (FORWARDS + 1) * len(rows) * len(forwards)) as advance:
            curves = verify_curve(forwards, rows, FORWARDS, failures, advance)
        self.failures |= {f"{name}, verify cost": why for name, why in failures.items()}
        return {
            "context_tokens": context,
            "ms": curves,
            "relative": {name: {n: ms / by_rows[rows[0]] for n, ms in by_rows.items()} for name, by_rows in curves.items()},
            "floor": self._floor(context),
        }

    def _floor(self, context: int) -> dict[str, Any] | None:
        """Time of a forward pass of one row over that of reading its weights, in turns; None if the bytes read are not known, or
        if so many more do not fit into memory."""
        if not isinstance(self.target, NativeModel):
            return None
        free, needed = free_bytes(), self.target.packed.read_bytes
        if free < needed:
            self.failures["floor"] = f"{needed / 1e9:.1f} GB as large as the weights would be read, and {free / 1e9:.1f} are free"
            return None
        reading = Reading(needed, self.threads)
        by_name = verify_curve({"row": ModelForward(self.target, context, 1), "reading": reading}, (1,), FORWARDS, {})
        row_ms, reading_ms = by_name["row"][1], by_name["reading"][1]
        return {"bytes": reading.bytes, "row_ms": row_ms, "reading_ms": reading_ms, "ratio": row_ms / reading_ms}

    def _prefill(self) -> dict[str, Any]:
        """Milliseconds to the first token after a prompt of fixed length with nothing cached: median, minimum and maximum."""
        tokens = min(PREFILL, self.longest - 1)
        theirs = [one for one in self.theirs.values() if one.name == f"{one.peer} {PLAIN}"]
        decoders: list[Decoder] = [self.ours[PLAIN], *theirs]
        prompt = some_tokens(tokens, self.target.vocab_size)
        with self.watch("prefill", (1 + FORWARDS) * len(decoders)) as advance:
            tallies = contest(decoders, [prompt], Rules(1, FORWARDS), advance)
        self.failures |= {f"{name}, prefill": one.error for name, one in tallies.items() if one.error is not None}
        times = {name: [s * 1e3 for s in one.seconds["total_s"][0]] for name, one in tallies.items() if one.error is None}
        return {
            "tokens": tokens,
            "ms": {name: median(ms) for name, ms in times.items()},
            "range_ms": {name: [min(ms), max(ms)] for name, ms in times.items()},
        }

    def _memory(self, prompt: tuple[int, ...], kv_bytes: int) -> dict[str, Any]:
        """Memory of a separate process that answers the longest prompt, in the mode that needs most. kv_bytes: of one request."""
        settings, peaks = self.settings, []
        text = self.llm.tokenizer.decode(prompt, skip_special_tokens=False)
        shared = [str(self.path), f"--max-tokens={settings.max_tokens}"]
        shared += [f"--temperature={settings.temperature}", f"--seed={settings.seed}"]
        shared += [f"--weights={settings.weights}"] if settings.weights is not None else []
        shared += [f"--kv-cache={settings.kv_cache}"] if settings.kv_cache is not None else []
        shared += ["--lossy"] if settings.lossy else []
        # packing holds weights in two formats for a moment
        free, needed = free_bytes(), 2 * self.target.weights_bytes
        modes = self.modes if free >= needed else {}
        if not modes:
            missing = f"another process with this model may need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} are free"
            self.failures["memory"] = missing
        with self.watch("memory", len(modes)) as advance:
            for name, mode in modes.items():
                try:
                    peaks.append(peak_of_answering(text, [*shared, *mode.options()], self.threads))
                except DecoderFailed as error:
                    self.failures[f"memory, {name}"] = str(error)
                advance()
        return {
            "peak_resident_bytes": max((peak for peak in peaks if peak is not None), default=None),
            "of_one_answer": True,
            "weights_bytes": self.target.weights_bytes,
            "kv_bytes": kv_bytes,
        }


def _by_task(rows: list[dict[str, Any]], value: Callable[[dict[str, Any]], Any]) -> dict[str, dict[str, Any]]:
    """Task -> mode -> value of its row, without plain decoding."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["mode"] != PLAIN:
            found.setdefault(row["task"], {})[row["mode"]] = value(row)
    return found


def _acceptance(row: dict[str, Any]) -> list[float]:
    """By depth, the share of the steps that drafted to this depth in which a node there was accepted."""
    return [accepted / drafted for accepted, drafted in zip(row["accepted_by_depth"], row["drafted_by_depth"], strict=True)]
