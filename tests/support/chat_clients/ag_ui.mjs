// The unmodified client of npm's `@ag-ui/client`, whose verifier checks the order of events: prints what a page would have.
import { HttpAgent } from "@ag-ui/client";

const [url] = process.argv.slice(2);
const threadId = crypto.randomUUID();

async function run(agent, parameters = {}) {
  const types = [];
  const onEvent = ({ event }) => void types.push(event.type);
  await agent.runAgent(parameters, { onEvent });
  return types;
}

const brief = (agent) =>
  agent.messages.map((message) =>
    message.toolCalls ? message.toolCalls.map((call) => [call.function.name, call.function.arguments]) : message.content,
  );
const say = (agent, content) => agent.addMessage({ id: crypto.randomUUID(), role: "user", content });

const page = new HttpAgent({ url, threadId });
say(page, "Refund order 7.");
const asked = await run(page);
console.error("asked");
const interrupts = page.pendingInterrupts;

// Another page, which knows the thread only.
const other = new HttpAgent({ url, threadId });
const returned = await run(other);
console.error("returned");
const seen = brief(other);
console.error("seen");
const answers = { tool_call: { approved: true }, input_required: { answer: "Both." } };
const resume = other.pendingInterrupts.map(({ id, reason }) => ({
  interruptId: id,
  status: "resolved",
  payload: answers[reason],
}));
const resumed = await run(other, { resume });
console.error("resumed");

// A page is closed while the agent writes, and opened again.
say(other, "Tell me.");
const written = new Promise((resolve) => {
  const onTextMessageContentEvent = () => void resolve();
  other.runAgent({}, { onTextMessageContentEvent }).catch(() => {});
});
await written;
other.abortRun();
const last = new HttpAgent({ url, threadId });
const told = await run(last);
console.error("told");
console.log(
  JSON.stringify({
    asked,
    reasons: interrupts.map((each) => each.reason),
    returned,
    seen,
    resumed,
    done: brief(other).slice(0, seen.length + 3),
    told,
    all: brief(last),
  }),
);
