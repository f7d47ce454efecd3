// Error handling of the pages: shows a refusal as one sentence, and asks for an API key if one is missing.

import { Refused, useKey } from "./client.js";

const $ = (id) => document.getElementById(id);
let again = null;

export function tell(sentence) {
  $("error").textContent = sentence;
  $("error").hidden = !sentence;
}

/** Runs the user's action, and again once a missing API key was entered. Returns whether it succeeded. */
export async function attempt(action) {
  try {
    await action();
    return true;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    tell(error.message);
    if (error.status === 401) {
      again = action;
      $("key-form").hidden = false;
      $("key").focus();
    }
    return false;
  }
}

$("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  useKey($("key").value);
  $("key").value = "";
  $("key-form").hidden = true;
  tell("");
  await attempt(again);
});
