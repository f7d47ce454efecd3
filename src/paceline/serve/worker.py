"""Worker: the engine in a process of its own. Orders come in on standard input, news go out on standard output.

Its first line of input holds the settings. It ends when its input does, at once, even in the middle of a step: whoever started
it is gone. An exception in a step ends it too, after a word to everyone: the state of an engine that failed is not to be trusted.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import BinaryIO

from paceline.cache.pages import OutOfPages
from paceline.compose import IfItFits
from paceline.constraint import Constraint, GrammarError, GrammarsBusy
from paceline.engine.engine import Engine, RequestError
from paceline.engine.llm import LLM
from paceline.kernels.compilers import CompileError
from paceline.methods import noted
from paceline.models.base import ModelError
from paceline.own_files import OwnFileError
from paceline.params import SamplingParams
from paceline.registry import UnknownMethod
from paceline.serve.asking import Ask, Delta
from paceline.serve.logs import configure
from paceline.serve.pipe import Line, News, Order, Ready, parted
from paceline.serve.report import Report
from paceline.serve.running import Running
from paceline.serve.settings import Settings
from paceline.spec import SpecError

log = logging.getLogger("paceline.serve")

EXTRA_DRAFTERS = (IfItFits("reference:prompt=no"), IfItFits("grammar"))
"""They have something to say only where a request brings a prediction, or asks for a form."""
OFFERED = (IfItFits("ngram"), IfItFits("suffix:past=0"), IfItFits("lookahead"), IfItFits("recycle"))
"""What requests may name unless the settings say otherwise. Past answers are for `suffix` only where the settings name it:
without keys all clients are one tenant, and any of them could read there what another was told."""
Found = Constraint | GrammarError | None
"""What an answer must keep to, or why that cannot be had; None where its ask has no grammar."""


class Worker:
    """The engine's loop: take orders, step, tell the news."""

    def __init__(self, llm: LLM, orders: Orders, out: BinaryIO) -> None:
        self._llm, self._engine, self._orders, self._out = llm, llm.engine, orders, out
        self._line = Line(News)
        self._running: dict[int, Running] = {}
        """By the key of its sequence."""
        self._numbers: dict[int, int] = {}
        """Number of an ask -> key of its sequence."""
        self._report = Report(self._engine)
        speculative = self._engine.speculative
        self._facts = {
            "drafter": speculative.drafter.name,
            "verifier": speculative.verifier.name,
            "policy": speculative.policy.name,
            "target": llm.target.described,
        }

    def run(self) -> None:
        """Until the input ends the process."""
        self._tell(News(ready=self._ready(), stats=self._report.due()))
        while True:
            news = News()
            for order, found in self._orders.taken(wait=not self._engine.has_work):
                if order.ask is not None:
                    self._begin(order.number, order.ask, news, found)
                else:
                    self._end(order, news)
            self._step(news)
            stats = self._report.due()
            if news.deltas or news.refused or news.busy or stats:
                for part in parted(replace(news, stats=stats)):
                    self._tell(part)

    def _tell(self, news: News) -> None:
        self._out.write(self._line.write(news))
        self._out.flush()

    def _ready(self) -> Ready:
        target, speculative = self._llm.target, self._engine.speculative
        names = tuple(part.name for part in speculative.drafter.parts)
        return Ready(
            context_length=self._engine.longest,
            vocab_size=target.vocab_size,
            drafters=names,
            default_drafters=tuple(name for name in names if name not in speculative.on_request),
            drafter_notes={part.name: noted(part) for part in speculative.drafter.parts},
            target=self._facts["target"],
            policy=self._facts["policy"],
            verifier=self._facts["verifier"],
        )

    def _begin(self, number: int, ask: Ask, news: News, found: Found = None) -> None:
        """Admit an ask, or say why it cannot be. found: by `prepared`, where it has a grammar."""
        if isinstance(found, GrammarError):
            (news.busy if isinstance(found, GrammarsBusy) else news.refused)[number] = str(found)
            return
        try:
            keeps = self._llm.keeps(ask.params)
            sequence = self._engine.add(
                ask.prompt,
                ask.params,
                reference=ask.reference,
                tenant=ask.tenant,
                payer=ask.payer,
                priority=ask.priority,
                drafters=None if ask.drafters is None else frozenset(ask.drafters),
                nodes=ask.nodes,
                constraint=found,
            )
        except RequestError as error:
            news.refused[number] = str(error)
            return
        drafter = self._facts["drafter"] if ask.drafters is None else "+".join(ask.drafters) or "none"
        facts = {**self._facts, "drafter": drafter, "lossless": keeps != "nothing", "keeps": keeps}
        self._running[sequence.key] = Running(number, ask, sequence, facts, monotonic())
        self._numbers[number] = sequence.key
        self._report.changed = True

    def _end(self, order: Order, news: News) -> None:
        """End what runs under a number; a no-op where it has ended."""
        key = self._numbers.pop(order.number, None)
        if key is not None:
            running = self._running.pop(key)
            if order.late:
                # what was held back for a stop string, or as half a character, is all that there will be
                text = ""
                if running.sequence.finish_reason is None:
                    stream = self._engine.stops.stream(running.sequence)
                    stream.finish()
                    text = stream.text[running.shown_chars :]
                news.deltas[order.number] = Delta(text=text, ending=running.ending("timeout"))
            self._engine.abort(running.sequence)
            self._report.changed = True

    def _step(self, news: News) -> None:
        """One step for everyone who is in flight."""
        began_s = monotonic()
        progress = self._engine.step()
        if progress:
            self._report.stepped(progress)
        for one in progress:
            running = self._running[one.sequence.key]
            if not running.begun:
                running.begun = True
                self._report.began(running.sequence, began_s - running.came_s)
            delta = running.delta(one)
            if delta is not None:
                news.deltas[running.number] = delta
            if one.error is not None:
                log.error("%s", one.error)
            if one.finished:
                del self._running[one.sequence.key], self._numbers[running.number]


class Orders:
    """Lines of the input, read by a thread of their own; the end of the input ends the process.

    prepare: what is done with an ask that has a grammar first, in a thread that has nothing else to do, while the engine goes on
    with its steps and whoever has none is served; none comes before the engine is ready. What it finds comes with the order.
    """

    def __init__(self, source: Iterable[bytes], prepare: Callable[[Ask], Found] = lambda ask: None) -> None:
        self._source, self.prepare = source, prepare
        self._queue, self._waiting = SimpleQueue[tuple[Order, Found]](), SimpleQueue[Order]()
        self._preparing, self._lock = set[int](), Lock()
        for part in (self._read, self._prepare):
            Thread(target=self._run, args=(part,), daemon=True).start()

    def _run(self, part: Callable[[], None]) -> None:
        try:
            part()
        except BaseException:
            # nobody else does it: another process is sooner ready than this one is given up
            logging.getLogger("paceline").exception("the engine cannot read its orders")
            os._exit(1)

    def _read(self) -> None:
        line, prompt = Line(Order), tuple[int, ...]()
        for read in self._source:
            order = line.read(read)
            if order.ask is not None:
                # choices of one request follow one another, and share what they begin with
                if order.ask.prompt == prompt:
                    order = replace(order, ask=replace(order.ask, prompt=prompt))
                else:
                    prompt = order.ask.prompt
            with self._lock:
                if order.ask is not None and order.ask.params.grammar is not None:
                    self._preparing.add(order.number)
                # what ends an ask comes behind it
                waits = order.number in self._preparing
            if waits:
                self._waiting.put(order)
            else:
                self._queue.put((order, None))
        os._exit(0)

    def _prepare(self) -> None:
        while True:
            order = self._waiting.get()
            self._queue.put((order, None if order.ask is None else self.prepare(order.ask)))
            if order.ask is not None:
                with self._lock:
                    self._preparing.discard(order.number)

    def taken(self, wait: bool) -> Iterator[tuple[Order, Found]]:
        """What came in meanwhile; at least one where it is to wait."""
        if wait:
            yield self._queue.get()
        while True:
            try:
                yield self._queue.get_nowait()
            except Empty:
                return


def prepared(engine: Engine, ask: Ask) -> Found:
    """Compile its grammar: it takes up to seconds, the first one of all a second more."""
    try:
        return engine.constraint(ask.params)
    except GrammarError as error:
        # refused when it is to begin
        return error


def loaded(settings: Settings) -> LLM:
    """Raises ModelError, UnknownMethod or SpecError, this too where the verifier would have every request refused."""
    llm = LLM(
        settings.model,
        settings.draft,
        verify=settings.verify,
        lossy=settings.lossy,
        policy=settings.policy,
        weights=settings.weights,
        kv_cache=settings.kv_cache,
        extra_drafters=EXTRA_DRAFTERS,
        offer=OFFERED if settings.offer is None else settings.offer,
        batch=settings.batch,
        prefill_chunk=settings.prefill_chunk,
        cache_tokens=settings.cache_tokens,
    )
    try:
        llm.check_exactness(SamplingParams())
    except RequestError as error:
        raise SpecError(str(error)) from None
    return llm


def main() -> None:
    """Entry point of the process."""
    # a terminal's interrupt is for the server, which says what is to become of its engine
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    # whatever prints must not print into the news
    os.dup2(2, 1)
    settings = Settings.model_validate_json(sys.stdin.buffer.readline())
    configure(settings)
    line: Line[News] = Line(News)
    # from here on the end of the input is seen, while the model is loaded too
    orders = Orders(sys.stdin.buffer)
    try:
        llm = loaded(settings)
        orders.prepare = partial(prepared, llm.engine)
        worker = Worker(llm, orders, out)
        # what loading left behind stays for good: the collector need not look through it at every turn
        gc.freeze()
        worker.run()
    except BaseException as error:
        known = isinstance(error, (ModelError, SpecError, UnknownMethod, CompileError, OutOfPages))
        # what else it says may quote the texts of requests, as any exception may
        failed = "the engine failed" + (f" in '{error.file}'" if isinstance(error, OwnFileError) else "")
        if not known:
            log.exception("%s", failed)
        # nobody may be left to hear it
        with suppress(OSError):
            out.write(line.write(News(failure=str(error) if known else f"{failed}: {type(error).__name__}")))
            out.flush()
        sys.stderr.flush()
        # at once: the interpreter would fail to end while a thread waits for input
        os._exit(2 if known else 1)


if __name__ == "__main__":
    main()
