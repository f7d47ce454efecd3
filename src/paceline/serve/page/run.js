// One stream on the page: its text, readings and charts, updated at most once per animation frame.

import { drawDepth, drawSpeed, drawSteps, Plot } from "./charts.js";
import { stream } from "./client.js";
import { colours, hueOf } from "./palette.js";
import { Tally } from "./tally.js";
import { TokenText } from "./text.js";
import { chunkRead, request } from "./wire.js";

const DRAWINGS = { steps: drawSteps, depth: drawDepth, speed: drawSpeed };
const SLOW_STEP_MS = 280;

export class Run {
  #frame = 0;
  #plots;
  #parts;
  #record = [];
  #abort = new AbortController();
  #replaying = 0;
  #last = null;

  /** settings: as `request` takes them, and `title`. painted: called after every frame with new text. */
  constructor(template, settings, painted) {
    this.root = template.content.firstElementChild.cloneNode(true);
    this.settings = settings;
    this.painted = painted;
    const find = (selector) => this.root.querySelector(selector);
    this.#parts = {
      state: find(".state"),
      now: find(".now"),
      facts: find(".facts"),
      legend: find(".legend"),
      text: find(".text"),
      readings: Object.fromEntries([...this.root.querySelectorAll("[data-reading]")].map((one) => [one.dataset.reading, one])),
    };
    find("h2").textContent = settings.title;
    this.#plots = [...this.root.querySelectorAll("canvas")].map(
      (canvas) => new Plot(canvas, DRAWINGS[canvas.dataset.chart], () => this.stale()),
    );
    this.#clear();
  }

  #clear() {
    this.#parts.text.replaceChildren();
    this.#parts.legend.replaceChildren();
    this.#parts.rows = new Map();
    this.#legendRow("", 0);
    this.tally = new Tally();
    this.text = new TokenText(this.#parts.text, () => this.stale());
    this.logprobs = [];
    this.ids = [];
    this.steps = 0;
    this.#last = null;
  }

  get box() {
    return this.#parts.text;
  }

  /** Send the request and show its answer to the end, or until `stop` is called. Throws Refused. */
  async start() {
    this.#state("waiting for the first token");
    const [path, body] = request(this.settings);
    const begun = performance.now();
    try {
      for await (const chunks of stream(path, body, this.#abort.signal)) {
        const seconds = (performance.now() - begun) / 1000;
        for (const chunk of chunks) this.#take(chunkRead(chunk), seconds);
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        this.#state(this.tally.tokens ? "broke off" : "not answered");
        throw error;
      }
      this.stopped = true;
    } finally {
      this.done = true;
      this.#finish();
    }
    this.#state(this.#outcome());
  }

  stop() {
    this.#abort.abort();
  }

  /** Show the same steps again, slowly enough to follow; times in the readings stay those of the stream. */
  async replay() {
    const round = ++this.#replaying;
    this.#clear();
    this.#state("again, slowly");
    const record = this.#record;
    this.#record = [];
    for (const [chunk, seconds] of record) {
      this.#take(chunk, seconds);
      for (let step = 0; step < (chunk.steps?.length ?? 0); step++) {
        if (round === this.#replaying) await new Promise((resume) => setTimeout(resume, SLOW_STEP_MS));
      }
    }
    this.#finish();
    this.#state(this.#outcome());
  }

  /** Ends a replay at once: the rest is shown without waiting. */
  hurry() {
    this.#replaying += 1;
  }

  close() {
    this.stop();
    this.hurry();
    cancelAnimationFrame(this.#frame);
    for (const plot of this.#plots) plot.close();
  }

  #take(chunk, seconds) {
    this.#record.push([chunk, seconds]);
    if (!this.tally.tokens && !this.#replaying) this.#state("generating");
    for (const step of chunk.steps ?? []) {
      step.number = ++this.steps;
      this.tally.add(step, seconds);
      this.ids.push(...step.emitted.map((token) => token.id));
      this.#last = step;
    }
    this.logprobs.push(...chunk.logprobs);
    this.text.add(chunk.text, chunk.steps);
    this.reason = chunk.reason ?? this.reason;
    if (chunk.metrics) this.#facts(chunk.metrics);
    this.stale();
  }

  /** Show the rest at once, without waiting for a frame, which a hidden tab would not get. */
  #finish() {
    this.text.end();
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#paint();
  }

  #outcome() {
    const { tokens, seconds } = this.tally;
    const why = this.stopped ? "stopped" : { length: "ended at its length", timeout: "ran out of time" }[this.reason] ?? "ended";
    return `${why} after ${tokens} tokens, ${shortTime(seconds)}, seed ${this.settings.seed}`;
  }

  #state(text) {
    this.#parts.state.textContent = text;
  }

  #facts(metrics) {
    const facts = [`policy ${metrics.policy}`, `verifier ${metrics.verifier}`, metrics.lossless ? "lossless" : "not lossless"];
    this.#parts.facts.textContent = `${facts.join(" · ")} · target ${metrics.target}`;
  }

  /** Call when the width of the window has changed. */
  resized() {
    this.text.resized();
    this.stale();
  }

  /** Redraw everything in the next frame. */
  stale() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#paint();
    });
  }

  #paint() {
    const { tally } = this;
    const { readings } = this.#parts;
    write(readings.tau, tally.tau === null ? "–" : tally.tau.toFixed(2));
    write(readings.speed, tally.speed === null ? "–" : tally.speed.toFixed(tally.speed < 10 ? 1 : 0));
    write(readings.accepted, tally.acceptance === null ? "–" : `${Math.round(tally.acceptance * 100)} %`);
    write(readings.tokens, String(tally.tokens));
    write(readings.steps, String(tally.steps.length));
    write(this.#parts.now, this.#last ? stepTold(tally.steps.at(-1)) : "");
    this.#legend();
    const now = colours();
    for (const plot of this.#plots) plot.paint(tally, now);
    if (this.done) this.#describe();
    // last, since it measures the nodes it inserted: so the frame needs one layout only
    const shown = this.text.paint();
    if (this.text.due) this.stale();
    if (shown) this.painted(this);
  }

  #legend() {
    for (const [source, tokens] of this.tally.bySource) this.#legendRow(source, tokens);
    if (this.tally.rejected) this.#legendRow(null, this.tally.rejected);
  }

  /** source: a drafter, "" for the target itself, null for rejected tokens. */
  #legendRow(source, tokens) {
    const { rows, legend } = this.#parts;
    let count = rows.get(source);
    if (!count) {
      const row = document.createElement("li");
      const label = document.createElement(source === null ? "s" : "span");
      count = document.createElement("b");
      label.textContent = source ?? "drafted in vain";
      if (source === "") label.textContent = "target alone";
      if (source !== null) label.dataset.hue = hueOf(source);
      row.append(label, " ", count);
      rows.set(source, count);
      const vain = source !== null && rows.get(null)?.parentElement;
      if (vain) vain.before(row);
      else legend.append(row);
    }
    write(count, String(tokens));
  }

  /** Describe the charts in words, for screen readers. */
  #describe() {
    const { tally } = this;
    const depth = tally.byDepth.map((share, at) => `depth ${at + 1}: ${Math.round(share * 100)} %`).join(", ");
    const told = {
      steps: `${tally.steps.length} steps drafted ${tally.drafted} tokens, of which ${tally.accepted} were accepted`,
      depth: depth || "nothing was drafted",
      speed: tally.speed === null ? "too short to measure" : `${tally.speed.toFixed(1)} tokens per second`,
    };
    for (const { canvas } of this.#plots) canvas.setAttribute("aria-label", told[canvas.dataset.chart]);
  }
}

function stepTold(step) {
  if (!step.drafted) return "last step: nothing drafted";
  return `last step: ${step.drafted} by ${[...step.shares.keys()].join(" and ")}, ${step.accepted} accepted`;
}

/** Sets the text of an element unless it is the same already. */
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function shortTime(seconds) {
  return seconds < 10 ? `${seconds.toFixed(2)} s` : `${seconds.toFixed(1)} s`;
}
