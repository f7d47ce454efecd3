// What a page does about a refusal: it tells it in a sentence, and asks for a key where one is missing.

import { Refused, useKey } from "./client.js";

const $ = (id) => document.getElementById(id);
let again = null;

export function tell(sentence) {
  $("error").textContent = sentence;
  $("error").hidden = !sentence;
}

/** Runs what the reader asked for, and once more when the key that it lacked was given. Returns whether it went well. */
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
