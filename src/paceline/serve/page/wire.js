// Requests in the format of the two endpoints, and their chunks in a common format.

const ALTERNATIVES = 5;

/** settings: {model, prompt, chat, temperature, seed, length, drafters: null for the server's own}. Returns [path, body]. */
export function request(settings) {
  const body = {
    model: settings.model,
    temperature: settings.temperature,
    seed: settings.seed,
    stream: true,
    stream_options: { include_usage: true },
    speculation: { ...drafting(settings.drafters), trace: true },
  };
  if (settings.chat) {
    const messages = [{ role: "user", content: settings.prompt }];
    const more = { messages, max_completion_tokens: settings.length, logprobs: true, top_logprobs: ALTERNATIVES };
    return ["v1/chat/completions", { ...body, ...more }];
  }
  return ["v1/completions", { ...body, prompt: settings.prompt, max_tokens: settings.length, logprobs: ALTERNATIVES }];
}

/**
 * A chunk as {text, steps, logprobs, reason, usage, metrics}. steps: null without a trace. logprobs: per token
 * {logprob, top: [[text, logprob], ...]}, the likeliest first. reason: why the answer ended; "timeout" if it timed out.
 */
export function chunkRead(chunk) {
  const choice = chunk.choices?.[0];
  const said = choice?.delta;
  return {
    text: choice?.text ?? `${said?.reasoning_content ?? ""}${said?.content ?? ""}`,
    steps: chunk.speculation?.steps ?? null,
    logprobs: choice?.logprobs ? logprobsRead(choice.logprobs) : [],
    reason: choice?.stop_reason === "timeout" ? "timeout" : choice?.finish_reason ?? null,
    usage: chunk.usage ?? null,
    metrics: chunk.metrics?.speculative_decoding ?? null,
  };
}

function logprobsRead(told) {
  if (told.content) {
    return told.content.map((one) => ({
      logprob: one.logprob,
      top: one.top_logprobs.map((other) => [other.token, other.logprob]),
    }));
  }
  return (told.token_logprobs ?? []).map((logprob, at) => ({
    logprob,
    top: Object.entries(told.top_logprobs?.[at] ?? {}).sort((a, b) => b[1] - a[1]),
  }));
}

function drafting(drafters) {
  if (drafters === null) return {};
  return { drafter: drafters.length ? drafters : "none" };
}
