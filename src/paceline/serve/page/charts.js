// Three small charts on canvas. Each is redrawn completely, at most once per animation frame.

import { hueOf } from "./palette.js";

const COLUMN = 6;
const GAP = 1;
const PAD = 4;
const LABELS = 14;
const DEEPEST = 12;
const FONT = "ui-sans-serif, system-ui, sans-serif";

/** A canvas that tracks its size with an observer, without forcing a layout. */
export class Plot {
  #observer;

  constructor(canvas, draw, stale) {
    this.canvas = canvas;
    this.draw = draw;
    this.width = this.height = 0;
    this.#observer = new ResizeObserver(([entry]) => {
      this.width = entry.contentRect.width;
      this.height = entry.contentRect.height;
      stale();
    });
    this.#observer.observe(canvas);
  }

  paint(tally, colours) {
    if (!this.width) return;
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(this.width * scale), Math.round(this.height * scale)];
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    const pen = this.canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.font = `10.5px ${FONT}`;
    this.draw(pen, this.width, this.height, tally, colours);
  }

  close() {
    this.#observer.disconnect();
  }
}

/** A column per step: accepted tokens opaque, rejected ones pale above them, in the hue of their drafter. */
export function drawSteps(pen, width, height, tally, { hues, quiet, line }) {
  const floor = height - PAD;
  const count = Math.floor((width - LABELS - PAD) / COLUMN);
  const steps = tally.steps.slice(-count);
  const top = Math.max(4, ...steps.map((step) => step.drafted));
  const unit = (floor - PAD) / top;
  rule(pen, 0, floor + 0.5, width, line);
  rule(pen, 0, Math.round(floor - unit * top) + 0.5, width - LABELS, line);
  label(pen, String(top), width, PAD + 4, quiet, "right");
  steps.forEach((step, at) => {
    const x = at * COLUMN;
    let y = floor;
    const block = (tokens, hue, alpha) => {
      pen.globalAlpha = alpha;
      pen.fillStyle = hue;
      pen.fillRect(x, y - tokens * unit, COLUMN - GAP, tokens * unit);
      y -= tokens * unit;
    };
    for (const [source, share] of step.shares) block(share.accepted, hues[hueOf(source)], 1);
    for (const [source, share] of step.shares) block(share.rejected, hues[hueOf(source)], 0.3);
    pen.globalAlpha = 1;
    if (!step.drafted) block(1.5 / unit, hues.target, 1);
  });
}

/** A bar per depth: share of steps that drafted to this depth in which a token there was accepted. */
export function drawDepth(pen, width, height, tally, { accent, quiet, line }) {
  const shares = tally.byDepth.slice(0, DEEPEST);
  const floor = height - LABELS;
  const room = floor - LABELS;
  rule(pen, 0, floor + 0.5, width, line);
  rule(pen, 0, LABELS + 0.5, width, line);
  if (!shares.length && tally.steps.length) label(pen, "nothing drafted", 0, floor - 6, quiet, "left");
  const slots = Math.max(shares.length, 4);
  const slot = width / slots;
  const bar = Math.min(slot - 3, 26);
  const every = slot < 16 ? 2 : 1;
  shares.forEach((share, at) => {
    const x = slot * at + (slot - bar) / 2;
    pen.fillStyle = accent;
    pen.fillRect(x, floor - share * room, bar, share * room);
    if (at % every === 0) label(pen, String(at + 1), x + bar / 2, height - 2, quiet, "center");
    if (slot >= 22) label(pen, String(Math.round(share * 100)), x + bar / 2, floor - share * room - 3, quiet, "center");
  });
}

/** The speed over the last quarter of a second, against time. */
export function drawSpeed(pen, width, height, tally, { accent, quiet, line }) {
  const points = tally.times.filter((time) => time.speed !== null);
  const floor = height - LABELS;
  rule(pen, 0, floor + 0.5, width, line);
  rule(pen, 0, LABELS + 0.5, width, line);
  if (!points.length) return;
  const top = rounded(Math.max(...points.map((point) => point.speed)));
  const from = points[0].seconds;
  const span = Math.max(points.at(-1).seconds - from, 0.001);
  pen.strokeStyle = accent;
  pen.lineWidth = 1.75;
  pen.lineJoin = "round";
  pen.beginPath();
  for (const point of points) {
    const x = 1 + ((point.seconds - from) / span) * (width - 2);
    const y = floor - (point.speed / top) * (floor - LABELS);
    pen.lineTo(x, y);
  }
  if (points.length === 1) pen.lineTo(width, floor - (points[0].speed / top) * (floor - LABELS));
  pen.stroke();
  label(pen, String(top), 0, LABELS - 4, quiet, "left");
  label(pen, `${points.at(-1).seconds.toFixed(1)} s`, width, height - 2, quiet, "right");
  label(pen, `${from.toFixed(1)} s`, 0, height - 2, quiet, "left");
}

/** The next larger round number, for an axis. */
function rounded(value) {
  const size = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 1.5, 2, 3, 4, 5, 7.5, 10].map((step) => step * size).find((step) => step >= value);
}

function rule(pen, x, y, width, colour) {
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x + width, y);
  pen.stroke();
}

function label(pen, text, x, y, colour, align) {
  pen.fillStyle = colour;
  pen.textAlign = align;
  pen.fillText(text, x, y);
}
