// A hue per drafter, assigned in the order in which the server offers them; style.css defines the hues.

const HUES = 6;
const given = new Map();

export function introduce(names) {
  for (const name of names) hueOf(name);
}

/** "target" for a token of the target itself, else the number of a hue. */
export function hueOf(source) {
  if (!source) return "target";
  if (!given.has(source)) given.set(source, given.size % HUES);
  return String(given.get(source));
}

let known = null;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (known = null));

/** The current colours of the style sheet: light or dark. */
export function colours() {
  known ??= read();
  return known;
}

function read() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  const hues = { target: value("--target") };
  for (let hue = 0; hue < HUES; hue++) hues[hue] = value(`--hue-${hue}`);
  return { hues, quiet: value("--quiet"), line: value("--line"), accent: value("--accent") };
}
