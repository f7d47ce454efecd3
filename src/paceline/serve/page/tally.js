// Running totals over the steps of a stream.

const WINDOW_S = 0.25;

export class Tally {
  constructor() {
    this.tokens = 0;
    this.steps = [];
    this.drafted = 0;
    this.accepted = 0;
    this.draftedTo = [];
    this.acceptedTo = [];
    this.bySource = new Map();
    this.rejected = 0;
    /** When tokens arrived: {seconds, tokens so far, speed over the last quarter of a second or null}. */
    this.times = [];
  }

  /** seconds: since the request was sent. */
  add(step, seconds) {
    const shares = new Map();
    const share = (source) => shares.get(source) ?? shares.set(source, { accepted: 0, rejected: 0 }).get(source);
    for (const { source } of step.emitted) {
      this.bySource.set(source, (this.bySource.get(source) ?? 0) + 1);
      if (source) share(source).accepted += 1;
    }
    for (const { source } of step.rejected) share(source).rejected += 1;
    const deepest = Math.max(step.accepted, 0, ...depths(step.rejected));
    for (let depth = 0; depth < deepest; depth++) {
      this.draftedTo[depth] = (this.draftedTo[depth] ?? 0) + 1;
      this.acceptedTo[depth] = (this.acceptedTo[depth] ?? 0) + (depth < step.accepted ? 1 : 0);
    }
    this.tokens += step.emitted.length;
    this.drafted += step.drafted;
    this.accepted += step.accepted;
    this.rejected += step.rejected.length;
    this.steps.push({ drafted: step.drafted, accepted: step.accepted, shares });
    this.#time(seconds);
  }

  #time(seconds) {
    const last = this.times.at(-1);
    if (last && seconds - last.seconds < 0.002) last.tokens = this.tokens;
    else this.times.push({ seconds, tokens: this.tokens, speed: null });
    const now = this.times.at(-1);
    let before = this.times.length - 1;
    while (before > 0 && now.seconds - this.times[before].seconds < WINDOW_S) before -= 1;
    const from = this.times[before];
    if (now.seconds > from.seconds) now.speed = (now.tokens - from.tokens) / (now.seconds - from.seconds);
  }

  /** Mean tokens per step of the model. */
  get tau() {
    return this.steps.length ? this.tokens / this.steps.length : null;
  }

  /** Share of drafted tokens that were accepted; null if none was drafted. */
  get acceptance() {
    return this.drafted ? this.accepted / this.drafted : null;
  }

  /** Share of the steps that drafted to depth 1, 2, ... in which a token of that depth was accepted. */
  get byDepth() {
    return this.draftedTo.map((steps, depth) => this.acceptedTo[depth] / steps);
  }

  /** Tokens per second after the first ones, without the time to first token. */
  get speed() {
    const first = this.times[0];
    const last = this.times.at(-1);
    return first && last.seconds > first.seconds ? (last.tokens - first.tokens) / (last.seconds - first.seconds) : null;
  }

  get seconds() {
    return this.times.at(-1)?.seconds ?? 0;
  }
}

/** Depth of every rejected token below the step's root; a parent of -1 - i is the i-th token that the step emitted. */
export function depths(rejected) {
  const found = [];
  for (const { parent } of rejected) found.push(parent < 0 ? -parent : (found[parent] ?? 0) + 1);
  return found;
}

/** Rejected tokens as branches: [{after, nodes}]; `after`: number of the step's emitted tokens before the branch. */
export function branches(rejected) {
  const children = rejected.map(() => []);
  const roots = [];
  rejected.forEach(({ parent }, at) => (parent < 0 ? roots : (children[parent] ?? roots)).push(at));
  const found = [];
  const walk = (at, after, before) => {
    const nodes = [...before, rejected[at]];
    const below = children[at];
    if (!below.length) found.push({ after, nodes });
    for (const child of below) walk(child, after, nodes);
  };
  for (const root of roots) walk(root, Math.max(-1 - rejected[root].parent, 0), []);
  return found;
}
