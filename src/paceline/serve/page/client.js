// Client of the server's API: its descriptions, and streamed answers.

const KEY = "paceline-key";

/** The server refused a request or could not be reached; the message is one sentence. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** Whether the user has entered an API key. */
export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Refused(0, "The server cannot be reached.");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) {
    sessionStorage.removeItem(KEY);
    // not an error yet: the page asks for a key
    if (!key) throw new Refused(401, "");
  }
  const told = await answer.json().catch(() => null);
  throw new Refused(answer.status, sentence(told?.error?.message ?? `The server answered with status ${answer.status}`));
}

function sentence(message) {
  const text = String(message).split("\n")[0].trim();
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

/** Drafters, policy and verifier: the response of GET /v1/speculation. */
export async function offered() {
  return (await ask("v1/speculation")).json();
}

/** All routes with their parameters: the response of GET /openapi.json. */
export async function described() {
  return (await ask("openapi.json")).json();
}

/** Yields lists of chunks, one list per network read. Throws Refused, or AbortError once `signal` is aborted. */
export async function* stream(path, body, signal) {
  const answer = await ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let read;
    try {
      read = await reader.read();
    } catch (error) {
      throw error.name === "AbortError" ? error : new Refused(0, "The connection broke before the answer was whole.");
    }
    if (read.done) throw new Refused(0, "The stream ended before the answer was whole.");
    const events = (rest + read.value.replaceAll("\r", "")).split("\n\n");
    rest = events.pop();
    const chunks = [];
    let whole = false;
    for (const event of events) {
      const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (!data) continue;
      if (data === "[DONE]") {
        whole = true;
        break;
      }
      chunks.push(JSON.parse(data));
    }
    const failed = chunks.find((chunk) => chunk.error);
    const good = failed ? chunks.slice(0, chunks.indexOf(failed)) : chunks;
    if (good.length) yield good;
    if (failed) throw new Refused(0, sentence(failed.error.message ?? "The server could not go on"));
    if (whole) return;
  }
}
