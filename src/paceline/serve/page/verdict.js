// Compares two runs of one prompt: whether their texts are equal, and the ratio of their times.

import { shortTime } from "./run.js";

/** Returns {same, text} and, if both ended with equal texts, detail. inTurn: whether they ran one after the other. */
export function verdict(a, b, inTurn) {
  const shared = Math.min(a.ids.length, b.ids.length);
  const differs = a.ids.findIndex((id, at) => at < shared && id !== b.ids[at]);
  if (differs >= 0) return { same: false, text: `The texts differ from token ${differs + 1} on.` };
  if (a.stopped || b.stopped || a.ids.length !== b.ids.length) {
    return { same: shared > 0, text: `Identical as far as both got: ${shared} tokens.` };
  }
  const [fast, slow] = a.tally.seconds <= b.tally.seconds ? [a, b] : [b, a];
  const terms = `${shortTime(slow.tally.seconds)} ÷ ${shortTime(fast.tally.seconds)}`;
  const ratio = (slow.tally.seconds / fast.tally.seconds).toFixed(2);
  const [first, second] = [fast, slow].map(
    ({ settings, tally }) => `${settings.title} took ${shortTime(tally.seconds)} and ${tally.steps.length} steps`,
  );
  const how = inTurn ? "They ran one after the other." : "They ran at once and shared the machine.";
  return { same: true, text: `Identical text, ${shared} tokens.`, detail: `${first}, ${second}: ${terms} = ${ratio}. ${how}` };
}
