// The main page: its form, the runs that it starts, and their comparison.

import { attempt, tell } from "./attempt.js";
import { Card } from "./card.js";
import { offered, Refused } from "./client.js";
import { ANYONE, EXAMPLES } from "./examples.js";
import { hueOf, introduce } from "./palette.js";
import { Run } from "./run.js";
import { verdict } from "./verdict.js";

const $ = (id) => document.getElementById(id);
const PLAIN = "no drafter";
// these draft from an expected answer or a grammar, which this page's requests do not have
const IDLE = ["reference", "grammar"];
const card = new Card($("card"));
let about = null;
let runs = [];
let following = false;
let stopping = false;

async function begin() {
  about = await offered();
  const drafters = about.drafters.filter((one) => !IDLE.includes(one.name));
  introduce([...about.default.filter((name) => !IDLE.includes(name)), ...drafters.map((one) => one.name)]);
  $("served").textContent = `${about.model} · policy ${about.policy} · verifier ${about.verifier}`;
  offer($("side-a"), drafters, about.default);
  offer($("side-b"), drafters, []);
  $("notes").replaceChildren(...drafters.flatMap(noted));
  $("chat").disabled = !about.has_chat_template;
  if (!about.has_chat_template) $("chat").parentElement.title = "This model has no chat template";
  $("chat").parentElement.classList.toggle("off", !about.has_chat_template);
  $("length").max = about.context_length;
  showExamples(about.model.startsWith("paceline-"));
  $("ask").hidden = false;
}

function offer(box, drafters, chosen) {
  box.replaceChildren(
    ...drafters.map(({ name, summary }) => {
      const label = document.createElement("label");
      const input = Object.assign(document.createElement("input"), { type: "checkbox", value: name, checked: chosen.includes(name) });
      const text = document.createElement("span");
      text.textContent = name;
      label.className = "chip";
      label.title = summary;
      label.dataset.hue = hueOf(name);
      label.append(input, text);
      return label;
    }),
  );
}

function noted({ name, summary, source }) {
  const term = document.createElement("dt");
  const note = document.createElement("dd");
  term.textContent = name;
  term.dataset.hue = hueOf(name);
  note.textContent = summary;
  if (source) note.title = source;
  return [term, note];
}

function showExamples(embedded) {
  const kinds = EXAMPLES.filter(([name]) => embedded || ANYONE.includes(name));
  $("examples").replaceChildren(
    ...kinds.map(([name, prompts]) => {
      const button = Object.assign(document.createElement("button"), { type: "button", className: "chip", textContent: name });
      let next = 0;
      button.addEventListener("click", () => {
        $("prompt").value = prompts[next++ % prompts.length];
      });
      return button;
    }),
  );
  if (!$("prompt").value) $("prompt").value = kinds[0][1][0];
}

function chosen(box) {
  return [...box.querySelectorAll("input:checked")].map((input) => input.value);
}

function asked() {
  if (!$("prompt").value && !$("chat").checked) throw new Refused(0, "The prompt is empty.");
  const shared = {
    model: about.model,
    prompt: $("prompt").value,
    chat: $("chat").checked,
    temperature: $("temperature").valueAsNumber,
    seed: $("seed").value === "" ? crypto.getRandomValues(new Uint32Array(1))[0] : $("seed").valueAsNumber,
    length: $("length").valueAsNumber,
  };
  const sides = $("compare").checked ? ["side-a", "side-b"] : ["side-a"];
  return sides.map((side) => {
    const drafters = chosen($(side));
    // an unchanged selection means the server's default, where the policy decides step by step
    const own = about.default.filter((name) => !IDLE.includes(name));
    const left = own.length === drafters.length && own.every((name) => drafters.includes(name));
    return { ...shared, drafters: left ? null : drafters, title: drafters.join(" + ") || PLAIN };
  });
}

async function generate() {
  const settings = asked();
  for (const run of runs) run.close();
  card.hide();
  tell("");
  $("verdict").hidden = true;
  runs = settings.map((one) => new Run($("run"), one, follow));
  $("runs").replaceChildren(...runs.map((run) => run.root));
  $("runs").classList.toggle("two", runs.length === 2);
  for (const run of runs) card.watch(run);
  following = true;
  busy("Stop");
  if ($("runs").getBoundingClientRect().top > 0.7 * innerHeight) $("runs").scrollIntoView({ block: "start" });
  const inTurn = $("in-turn").checked;
  const mine = runs;
  try {
    if (inTurn) await oneByOne(mine);
    else await together(mine);
    if (mine !== runs) return;
    $("status").textContent = mine.map((run) => `${run.settings.title}: ${run.root.querySelector(".state").textContent}`).join(". ");
    if (mine.length === 2 && mine.every((run) => run.done)) conclude(verdict(mine[0], mine[1], inTurn));
  } finally {
    if (mine === runs) idle();
  }
}

async function oneByOne(all) {
  for (const run of all) if (!stopping) await run.start();
}

/** Runs all at once; if one fails the others are stopped. */
async function together(all) {
  const ends = await Promise.allSettled(
    all.map((run) =>
      run.start().catch((error) => {
        for (const other of all) other.stop();
        throw error;
      }),
    ),
  );
  const failed = ends.find((end) => end.status === "rejected");
  if (failed) throw failed.reason;
}

async function replay() {
  busy("Show the rest");
  following = true;
  await Promise.all(runs.map((run) => run.replay()));
  idle();
}

function busy(word) {
  stopping = false;
  $("go").disabled = true;
  $("stop").textContent = word;
  $("stop").hidden = false;
  $("replay").hidden = true;
  $("status").textContent = "Generating.";
}

function idle() {
  $("go").disabled = false;
  $("stop").hidden = true;
  $("replay").hidden = !runs.some((run) => run.tally.tokens);
}

function conclude({ same, text, detail }) {
  const head = document.createElement("strong");
  head.textContent = text;
  $("verdict").replaceChildren(head, detail ? ` ${detail}` : "");
  $("verdict").dataset.same = String(same);
  $("verdict").hidden = false;
  $("status").textContent = `${text} ${detail ?? ""}`;
}

/** Keeps the end of the text visible, until the user scrolls. */
function follow(run) {
  if (!following) return;
  const over = run.box.getBoundingClientRect().bottom - innerHeight + 24;
  if (over > 0) scrollBy(0, over);
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!$("go").disabled) attempt(generate);
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
});
$("stop").addEventListener("click", () => {
  stopping = true;
  for (const run of runs) {
    run.stop();
    run.hurry();
  }
});
$("replay").addEventListener("click", () => attempt(replay));
$("keep").addEventListener("change", () => document.body.classList.toggle("keep", $("keep").checked));
$("compare").addEventListener("change", () => {
  $("other").hidden = $("in-turn-label").hidden = !$("compare").checked;
});
for (const moved of ["wheel", "touchmove"]) addEventListener(moved, () => (following = false), { passive: true });
addEventListener("resize", () => {
  for (const run of runs) run.resized();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const run of runs) run.stale();
});
attempt(begin);
