// The unmodified transport of npm's `ai`, against a server: prints what a page would have.
import { DefaultChatTransport, getToolName, isToolUIPart, readUIMessageStream } from "ai";

const [url] = process.argv.slice(2);
const chatId = crypto.randomUUID();
const transport = new DefaultChatTransport({ api: url });

const user = (text) => ({ id: crypto.randomUUID(), role: "user", parts: [{ type: "text", text }] });

async function read(stream, message) {
  let last;
  const errors = [];
  const onError = (error) => errors.push(String(error));
  for await (const next of readUIMessageStream({ stream, message, onError })) last = next;
  if (errors.length) throw new Error(errors.join());
  return last;
}

const send = (messages, messageId) =>
  transport.sendMessages({ chatId, messages, trigger: "submit-message", messageId, abortSignal: undefined });
const resume = () => transport.reconnectToStream({ chatId });

const brief = (message) => ({
  id: message.id,
  parts: message.parts
    .filter((part) => part.type === "text" || isToolUIPart(part))
    .map((part) =>
      part.type === "text" ? part.text : [getToolName(part), part.state, part.input ?? null, part.output ?? null],
    ),
});

const first = user("Refund order 7.");
const asked = await read(await send([first]));
console.error("asked");
const returned = await read(await resume());
console.error("returned");
const reply = structuredClone(asked);
for (const part of reply.parts) {
  if (part.state === "approval-requested") {
    part.state = "approval-responded";
    part.approval = { ...part.approval, approved: true };
  } else if (part.state === "input-available" && !part.providerExecuted) {
    part.state = "output-available";
    part.output = "Both.";
  }
}
const done = await read(await send([first, reply], reply.id), structuredClone(reply));
console.error("done");
const idle = await resume();
console.error("idle");

// The page is closed while the agent writes, and opened again.
const second = user("Tell me.");
const left = (await send([first, done, second])).getReader();
console.error("left");
while ((await left.read()).value?.type !== "text-delta");
await left.cancel();
const told = await read(await resume());
console.error("told");
console.log(
  JSON.stringify({ asked: brief(asked), returned: brief(returned), done: brief(done), idle, told: brief(told) }),
);
