// The text of a stream, token by token. Text already shown never moves: rejected tokens ("ghosts") hang above it, out of flow.

import { hueOf } from "./palette.js";
import { branches } from "./tally.js";

const BROKEN = "\uFFFD";
const PATIENCE = 64;
const GHOSTS = 16;
const SHOWN_BRANCHES = 2;
const APART = 6;
const NARROW = 16;

export class TokenText {
  #box;
  #queue = [];
  #waiting = "";
  #fresh = [];
  #line = null;
  #faded = [];
  #all = [];
  #ghosts = [];
  #unplaced = [];
  #placed = null;
  #widths = [];
  #hanging = [];
  #count = 0;

  /** faded: called once a ghost has faded; it is removed in the next frame. */
  constructor(box, faded) {
    this.#box = box;
    box.onanimationend = (event) => {
      this.#faded.push(event.target);
      faded();
    };
    /** Per shown token {span, text, source, index, step, rejected}; `index` counts all tokens of the stream. */
    this.tokens = [];
    /** All text so far. */
    this.text = "";
    this.places = new WeakMap();
  }

  /** Add a chunk. steps: [{emitted, rejected, number}]; null without a trace. */
  add(text, steps) {
    this.#waiting += text;
    this.text += text;
    for (const step of steps ?? []) {
      const lost = branches(step.rejected);
      step.emitted.forEach((token, at) => {
        const rejected = lost.filter((branch) => branch.after === at).map((branch) => branch.nodes);
        this.#queue.push({ token: token.token, source: token.source, index: this.#count++, step, rejected });
      });
    }
    if (!steps && !this.#queue.length) this.#neutral();
    this.#settle(false);
  }

  /** Call when no more text comes. */
  end() {
    this.#settle(true);
    this.#neutral();
  }

  /**
   * Inserts the text added since the last frame into the page. Returns whether there was any.
   *
   * Each ghost ends where the next one on its line begins. Widths measured in one frame are applied in the next, so that a frame
   * needs one layout only.
   */
  paint() {
    for (const [ghost, width] of this.#widths) ghost.style.maxWidth = `${width}px`;
    // an invisible ghost would still cost time in every frame
    for (const ghost of this.#faded) ghost.classList.add("gone");
    this.#widths = [];
    this.#faded = [];
    const fresh = this.#fresh.length > 0;
    for (const [parent, ...nodes] of this.#fresh) parent.append(...nodes);
    this.#fresh = [];
    const room = this.#unplaced.length ? this.#box.clientWidth : 0;
    for (const ghost of this.#unplaced) {
      const { offsetLeft: left, offsetTop: top } = ghost.parentElement;
      const gap = left - (this.#placed?.left ?? 0) - APART;
      if (this.#placed?.top === top) this.#widths.push([this.#placed.ghost, gap < NARROW ? 0 : gap]);
      this.#widths.push([ghost, room - left]);
      this.#placed = { ghost, left, top };
    }
    this.#unplaced = [];
    return fresh;
  }

  /** Whether another frame is due. */
  get due() {
    return this.#widths.length > 0;
  }

  /** Call when the width of the box has changed, which may move line breaks. */
  resized() {
    this.#unplaced = this.#all.slice();
    this.#placed = null;
  }

  /**
   * Cuts the received text into its tokens. A token's own text may differ from its part of the text: it may be part of a
   * character, have a space that the text drops, or show nothing (an end of text). Such a token gets all text before the next
   * token that is found.
   */
  #settle(final) {
    while (this.#queue.length) {
      const item = this.#queue[0];
      const form = this.#form(item.token);
      if (form !== null) {
        this.#show(item, form);
      } else {
        const last = final || this.#queue.length > PATIENCE;
        if (!last && !item.token.includes(BROKEN) && item.token.startsWith(this.#waiting)) return;
        const next = this.#queue.findIndex((later, at) => at > 0 && later.token && !later.token.includes(BROKEN));
        const found = next > 0 ? this.#waiting.indexOf(this.#queue[next].token) : -1;
        if (found < 0 && !last) return;
        this.#show(item, found >= 0 ? this.#waiting.slice(0, found) : this.#queue.length === 1 ? this.#waiting : "");
      }
      this.#queue.shift();
    }
  }

  #form(token) {
    if (!token || token.includes(BROKEN)) return null;
    const forms = [token, ` ${token}`, ...(this.tokens.length ? [] : [token.trimStart()])];
    return forms.find((form) => form && this.#waiting.startsWith(form)) ?? null;
  }

  #neutral() {
    if (this.#waiting) this.#put(this.#waiting);
    this.#waiting = "";
  }

  #show(item, text) {
    this.#waiting = this.#waiting.slice(text.length);
    this.#hanging.push(...item.rejected);
    if (!text) return;
    const span = document.createElement("span");
    span.className = text === " " || text.includes("\n") ? "token blank" : "token";
    span.dataset.hue = hueOf(item.source);
    // the space before a word stays outside the span: at the end of a line it would show as a coloured stump, with a ghost above
    const spaced = /^ \S/.test(text);
    if (this.#hanging.length) span.append(this.#ghost(this.#hanging));
    span.append(spaced ? text.slice(1) : text);
    this.#put(spaced ? " " : "", span);
    if (text.endsWith("\n")) this.#line = null;
    this.places.set(span, this.tokens.length);
    this.tokens.push({ span, text, source: item.source, index: item.index, step: item.step, rejected: this.#hanging });
    this.#hanging = [];
  }

  /** Every line of the text is a block, so that only the last one needs a new layout. */
  #put(...nodes) {
    if (!this.#line) {
      this.#line = document.createElement("div");
      this.#fresh.push([this.#box, this.#line]);
    }
    this.#fresh.push([this.#line, ...nodes]);
  }

  #ghost(lost) {
    const anchor = document.createElement("span");
    anchor.className = "anchor";
    anchor.setAttribute("aria-hidden", "true");
    const ghost = document.createElement("span");
    ghost.className = "ghost";
    for (const nodes of lost.slice(0, SHOWN_BRANCHES)) {
      const branch = document.createElement("s");
      branch.dataset.hue = hueOf(nodes[0].source);
      branch.textContent = visible(nodes.map((node) => node.token).join("")).trim() || "␣";
      ghost.append(branch);
    }
    anchor.append(ghost);
    this.#ghosts.push(ghost);
    this.#unplaced.push(ghost);
    this.#all.push(ghost);
    // in a fast stream only the latest ghosts can be read, and each costs a layer while it fades
    if (this.#ghosts.length > GHOSTS) this.#faded.push(this.#ghosts.shift());
    return anchor;
  }
}

/** Text with line breaks and tabs as visible symbols. */
export function visible(text) {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}
