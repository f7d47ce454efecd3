// OpenAI's Node client: models, chat whole and streamed, completions, responses, tools, errors.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [url, key] = [process.env.PACELINE_URL, process.env.PACELINE_KEY];
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const model = "paceline-14m";
const messages = [{ role: "user", content: "name[Aromi], eatType[coffee shop], food[Chinese]" }];

const listed = [];
for await (const one of client.models.list()) listed.push(one.id);
assert.deepEqual(listed, [model]);

const asked = { model, messages, temperature: 0, max_tokens: 32 };
const whole = await client.chat.completions.create(asked);
let said = "";
let usage;
for await (const chunk of await client.chat.completions.create({
  ...asked,
  stream: true,
  stream_options: { include_usage: true },
})) {
  said += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(said, whole.choices[0].message.content);
assert.deepEqual(usage, whole.usage);

const helper = client.chat.completions.stream(asked);
assert.equal(await helper.finalContent(), said);

const text = await client.completions.create({ model, prompt: "Once upon", max_tokens: 8, temperature: 0, logprobs: 2 });
assert.equal(text.choices[0].logprobs.tokens.length, 8);

const response = await client.responses.create({ model, input: "Once upon", max_output_tokens: 16, temperature: 0 });
let delta = "";
for await (const event of await client.responses.create({
  model,
  input: "Once upon",
  max_output_tokens: 16,
  temperature: 0,
  stream: true,
})) {
  if (event.type === "response.output_text.delta") delta += event.delta;
}
assert.equal(delta, response.output_text);

const tools = [
  {
    type: "function",
    function: {
      name: "book",
      parameters: { type: "object", properties: { people: { type: "integer", maximum: 9 } }, required: ["people"] },
    },
  },
];
const called = await client.chat.completions.create({ ...asked, max_tokens: 120, tools, tool_choice: "required" });
assert.equal(called.choices[0].message.tool_calls[0].function.name, "book");
assert.equal(typeof JSON.parse(called.choices[0].message.tool_calls[0].function.arguments).people, "number");

await assert.rejects(client.chat.completions.create({ ...asked, temperature: 99999 }), OpenAI.BadRequestError);
await assert.rejects(client.chat.completions.create({ ...asked, model: "another" }), OpenAI.NotFoundError);
await assert.rejects(
  new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong-key", maxRetries: 0 }).models.list(),
  OpenAI.AuthenticationError,
);
console.log("openai for Node: 8 checks passed");
