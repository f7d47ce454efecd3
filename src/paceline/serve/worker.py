"""Worker: the engine in a separate process. Orders come in on standard input, news go out on standard output.

The first line of input holds the settings. The process exits as soon as its input ends, even in the middle of a step: the server
is gone. An exception in a step also ends it, after a failure message: the state of an engine that failed cannot be trusted.
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
"""They draft only for requests with a prediction, or with a grammar."""
OFFERED = (IfItFits("ngram"), IfItFits("suffix:past=0"), IfItFits("lookahead"), IfItFits("recycle"))
"""Drafters that requests may name unless the settings say otherwise. `suffix` uses past answers only if the settings name it:
without API keys all clients are one tenant, and any of them could find out there what others were answered."""
Found = Constraint | GrammarError | None
"""The constraint of an answer, or why its grammar cannot be used; None if the ask has no grammar."""


class Worker:
    """The engine's loop: take orders, step, send news."""

    def __init__(self, llm: LLM, orders: Orders, out: BinaryIO) -> None:
        self._llm, self._engine, self._orders, self._out = llm, llm.engine, orders, out
        self._line = Line(News)
        self._running: dict[int, Running] = {}
        """By the key of the sequence."""
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
        """Run until the end of the input ends the process."""
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
        """Admit an ask, or report why it is refused. found: from `prepared`, if the ask has a grammar."""
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
        """End the ask with a number; a no-op if it has ended."""
        key = self._numbers.pop(order.number, None)
        if key is not None:
            running = self._running.pop(key)
            if order.late:
                # text held back for a stop string, or as an incomplete character, is final now
                text = ""
                if running.sequence.finish_reason is None:
                    stream = self._engine.stops.stream(running.sequence)
                    stream.finish()
                    text = stream.text[running.shown_chars :]
                news.deltas[order.number] = Delta(text=text, ending=running.ending("timeout"))
            self._engine.abort(running.sequence)
            self._report.changed = True

    def _step(self, news: News) -> None:
        """One step for all sequences in flight."""
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
    """Lines of the input, read in a separate thread; the end of the input ends the process.

    prepare: called for each ask with a grammar, in another thread, while the engine keeps stepping and takes asks without one.
    Its result comes with the order. No ask arrives before the engine is ready.
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
            # no other thread takes over; a new process is ready sooner than the server would notice that this one hangs
            logging.getLogger("paceline").exception("the engine cannot read its orders")
            os._exit(1)

    def _read(self) -> None:
        line, prompt = Line(Order), tuple[int, ...]()
        for read in self._source:
            order = line.read(read)
            if order.ask is not None:
                # choices of one request follow one another: let them share one prompt object
                if order.ask.prompt == prompt:
                    order = replace(order, ask=replace(order.ask, prompt=prompt))
                else:
                    prompt = order.ask.prompt
            with self._lock:
                if order.ask is not None and order.ask.params.grammar is not None:
                    self._preparing.add(order.number)
                # an order that ends an ask must stay behind it
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
        """Orders that have arrived; with `wait` at least one."""
        if wait:
            yield self._queue.get()
        while True:
            try:
                yield self._queue.get_nowait()
            except Empty:
                return


def prepared(engine: Engine, ask: Ask) -> Found:
    """Compile the grammar of an ask: takes up to seconds, for the very first grammar a second more."""
    try:
        return engine.constraint(ask.params)
    except GrammarError as error:
        # `Worker._begin` refuses the ask
        return error


def loaded(settings: Settings) -> LLM:
    """Raises ModelError, UnknownMethod or SpecError; SpecError also if the verifier would have every request refused."""
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
    # Ctrl-C in a terminal is for the server, which decides when its engine ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    # prints of other code must not get into the news
    os.dup2(2, 1)
    settings = Settings.model_validate_json(sys.stdin.buffer.readline())
    configure(settings)
    line: Line[News] = Line(News)
    # from here on the end of the input ends the process, even while the model is loading
    orders = Orders(sys.stdin.buffer)
    try:
        llm = loaded(settings)
        orders.prepare = partial(prepared, llm.engine)
        worker = Worker(llm, orders, out)
        # objects made by loading live until the end: exempt them from garbage collection
        gc.freeze()
        worker.run()
    except BaseException as error:
        known = isinstance(error, (ModelError, SpecError, UnknownMethod, CompileError, OutOfPages))
        # do not send the exception's own message, which may quote texts of requests
        failed = "the engine failed" + (f" in '{error.file}'" if isinstance(error, OwnFileError) else "")
        if not known:
            log.exception("%s", failed)
        # the server may be gone
        with suppress(OSError):
            out.write(line.write(News(failure=str(error) if known else f"{failed}: {type(error).__name__}")))
            out.flush()
        sys.stderr.flush()
        # not sys.exit: the interpreter fails to shut down while a thread waits for input
        os._exit(2 if known else 1)


if __name__ == "__main__":
    main()
