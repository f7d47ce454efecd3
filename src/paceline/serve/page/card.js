// The card of a token: its text, the drafter that proposed it, its probability, and the likeliest alternatives.

import { hueOf } from "./palette.js";
import { visible } from "./text.js";

const MARGIN = 12;

export class Card {
  #root;
  #token = null;

  constructor(root) {
    this.#root = root;
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
  }

  /** Lets hover, tap, focus and arrow keys open the card over a run's text. */
  watch(run) {
    const { box } = run;
    const tokenAt = (event) => {
      const place = run.text.places.get(event.target.closest?.(".token"));
      return place === undefined ? null : place;
    };
    let current = -1;
    const go = (place) => {
      if (!run.text.tokens.length) return;
      current = Math.min(Math.max(place, 0), run.text.tokens.length - 1);
      this.show(run, current);
      run.text.tokens[current].span.scrollIntoView({ block: "nearest" });
    };
    // not "pointerover": text that moves under a resting pointer must not open a card
    box.addEventListener("pointermove", (event) => {
      const place = tokenAt(event);
      if (place !== null && event.pointerType !== "touch") this.show(run, (current = place));
    });
    box.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && this.hide());
    box.addEventListener("click", (event) => {
      const place = tokenAt(event);
      if (place !== null) this.show(run, (current = place));
    });
    box.addEventListener("focus", () => box.matches(":focus-visible") && go(current));
    box.addEventListener("blur", () => this.hide());
    box.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: Infinity };
      if (!(event.key in moves)) return;
      event.preventDefault();
      go(moves[event.key]);
    });
  }

  hide() {
    this.#token?.span.classList.remove("at");
    this.#token = null;
    this.#root.hidden = true;
  }

  show(run, place) {
    const token = run.text.tokens[place];
    if (token === this.#token) return;
    this.hide();
    this.#token = token;
    token.span.classList.add("at");
    this.#root.replaceChildren(...this.#content(run, token));
    this.#root.hidden = false;
    this.#place(token.span);
  }

  #place(span) {
    const at = span.getClientRects()[0] ?? span.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.#root;
    const room = document.documentElement;
    const below = at.bottom + 8 + height <= room.clientHeight;
    const left = Math.min(Math.max(at.left - 8, MARGIN), room.clientWidth - width - MARGIN);
    this.#root.style.setProperty("left", `${Math.max(left, 0)}px`);
    this.#root.style.setProperty("top", `${below ? at.bottom + 8 : Math.max(at.top - height - 8, 0)}px`);
  }

  #content(run, token) {
    const told = run.logprobs[token.index];
    const title = element("p", "piece", visible(token.text).replaceAll(" ", "␣"));
    const by = element("p", "by", token.source ? `proposed by ${token.source}` : "chosen by the target alone");
    by.dataset.hue = hueOf(token.source);
    const parts = [title, by];
    if (told) {
      parts.push(element("p", "chance", `probability ${percent(told.logprob)}`));
      parts.push(this.#alternatives(told));
    }
    for (const nodes of token.rejected) {
      const vain = element("p", "vain", "");
      const text = element("s", "", visible(nodes.map((node) => node.token).join("")).trim() || "␣");
      vain.dataset.hue = hueOf(nodes[0].source);
      vain.append(text, ` drafted here in vain by ${nodes[0].source || "no one"}`);
      parts.push(vain);
    }
    const { step } = token;
    const drafted = step.drafted ? `${step.drafted} drafted, ${step.accepted} accepted` : "nothing drafted";
    parts.push(element("p", "quiet", `step ${step.number}: ${drafted}, ${(step.draft_ms + step.forward_ms + step.verify_ms).toFixed(1)} ms`));
    return parts;
  }

  #alternatives(told) {
    const list = element("ol", "alternatives", "");
    for (const [text, logprob] of told.top) {
      const row = element("li", "", "");
      row.style.setProperty("--share", String(Math.exp(logprob)));
      if (logprob === told.logprob) row.className = "chosen";
      row.append(element("span", "", visible(text).replaceAll(" ", "␣")), element("b", "", percent(logprob)));
      list.append(row);
    }
    return list;
  }
}

function element(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.textContent = text;
  return made;
}

function percent(logprob) {
  const share = 100 * Math.exp(logprob);
  return share < 0.1 ? "< 0.1 %" : `${share.toFixed(share < 99.95 ? 1 : 0)} %`;
}
