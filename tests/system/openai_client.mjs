// What a program does with the unmodified `openai` SDK for JavaScript; prints what it got as JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "token-of-ada", maxRetries: 0 });
const got = {};

got.models = [];
for await (const model of client.models.list()) got.models.push(model.id);

const stream = client.responses.stream({ model: "seller", input: "Look." });
got.types = [];
let middle, after;
for await (const event of stream) {
  got.types.push(event.type);
  if (event.type === "response.output_text.done") middle ??= event.sequence_number;
}
const final = await stream.finalResponse();
got.text = final.output_text;
got.items = final.output.map((item) => [item.type, item.status]);
got.usage = final.usage.total_tokens;
got.integers = Number.isSafeInteger(middle);

got.resumed = [];
for await (const event of await client.responses.retrieve(final.id, { stream: true, starting_after: middle }))
  got.resumed.push(event.type);
const replayed = client.responses.stream({ response_id: final.id, starting_after: middle });
got.replayed = [];
for await (const event of replayed) got.replayed.push(event.type);

let waiting = await client.responses.create({ model: "seller", input: "Give it back." });
const asked = () => waiting.output.find((item) => item.type === "mcp_approval_request");
// A busy worker may take longer to ask than the server waits.
while (!asked() && waiting.status === "in_progress") waiting = await client.responses.retrieve(waiting.id);
const request = asked();
const reply = [{ type: "mcp_approval_response", approval_request_id: request.id, approve: true }];
const approved = await client.responses.create({ model: "seller", previous_response_id: waiting.id, input: reply });
got.approved = [waiting.status, approved.status, approved.output_text];

// The call of the sub-agent has not ended while two calls below it wait: whatever way the response is read.
const managed = { model: "manager", input: "Let it be done." };
async function streamed(options) {
  const events = [];
  for await (const event of await client.responses.create({ ...options, stream: true })) events.push(event);
  const ended = events.filter((event) => event.type === "response.output_item.done").map((event) => event.item);
  return { ended, response: events.at(-1).response };
}
const summary = (items) => items.map((item) => [item.type, item.type === "message" ? "" : (item.output ?? "")]);
const asks = (response) => response.output.filter((item) => item.type !== "mcp_call");
got.below = {};
for (const way of ["created", "streamed"]) {
  const first = way === "streamed" ? await streamed(managed) : { response: await client.responses.create(managed) };
  let waits = first.response;
  while (asks(waits).length < 2 && waits.status === "in_progress") waits = await client.responses.retrieve(waits.id);
  const retrieved = await client.responses.retrieve(waits.id);
  const input = asks(waits).map((item) =>
    item.type === "function_call"
      ? { type: "function_call_output", call_id: item.call_id, output: "Both." }
      : { type: "mcp_approval_response", approval_request_id: item.id, approve: true },
  );
  const reply = { model: "manager", previous_response_id: waits.id, input };
  const second = way === "streamed" ? await streamed(reply) : { response: await client.responses.create(reply) };
  got.below[way] = [
    [first.ended ?? first.response.output, first.response.output, retrieved.output].map(summary),
    [second.ended ?? second.response.output, second.response.output].map(summary),
    second.response.status,
  ];
}

const next = await client.responses.create({ model: "seller", input: "Say hello." });
const again = await client.responses.create({ model: "seller", previous_response_id: next.id, input: "Again." });
got.conversation = [next.output_text, again.output_text];

const background = await client.responses.create({ model: "seller", input: "Ask me.", background: true });
got.cancelled = (await client.responses.cancel(background.id)).status;

const runner = client.chat.completions.stream({
  model: "seller",
  messages: [{ role: "user", content: "Look." }],
  stream_options: { include_usage: true },
});
const chat = await runner.finalChatCompletion();
got.chat = [chat.choices[0].message.content, chat.choices[0].finish_reason, (await runner.totalUsage()).total_tokens];

try {
  await client.responses.create({ model: "seller", input: "x", top_logprobs: 3 });
} catch (error) {
  got.refused = [error.constructor.name, error.status, error.param];
}
try {
  for await (const _ of await client.chat.completions.create({ model: "strict_seller", messages: [{ role: "user", content: "Fail." }], stream: true }));
} catch (error) {
  got.failed = error.message;
}
console.log(JSON.stringify(got));
