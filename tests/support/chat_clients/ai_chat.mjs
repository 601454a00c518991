// The chat of npm's `ai` that `useChat` shows, unmodified: a person approves beside a slow tool, and perhaps opens the page again.
// Prints what the page has at the end, and what a second device gets.
const [url, name, when] = process.argv.slice(2); // `name`: the package; `when`: before | after | reload | return: after that tool has ended
const { AbstractChat, DefaultChatTransport, isToolUIPart, lastAssistantMessageIsCompleteWithApprovalResponses } =
  await import(name);

class State {
  status = "ready";
  error = undefined;
  constructor(messages) {
    this.messages = messages;
  }
  pushMessage = (message) => void (this.messages = [...this.messages, message]);
  popMessage = () => void (this.messages = this.messages.slice(0, -1));
  replaceMessage = (index, message) => void (this.messages = this.messages.with(index, this.snapshot(message)));
  snapshot = (value) => structuredClone(value);
}

class Chat extends AbstractChat {
  constructor(id, messages) {
    super({
      id,
      state: new State(messages),
      transport: new DefaultChatTransport({ api: url }),
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    });
  }
}

const id = crypto.randomUUID();
const load = async () => {
  const [path, query] = url.split("?");
  return (await fetch(`${path}/${id}?${query ?? ""}`)).json();
};
const calls = (chat) => chat.messages.flatMap((message) => message.parts).filter(isToolUIPart);
const text = (chat) => chat.messages.at(-1)?.parts.filter((part) => part.type === "text").at(-1)?.text;

async function until(chat, holds) {
  for (let tries = 0; !holds(); tries++) {
    if (chat.error) throw chat.error;
    if (tries > 1200) throw new Error(`it does not come: ${JSON.stringify(chat.messages)}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
const asked = (chat) => calls(chat).find((part) => part.state === "approval-requested");

let chat = new Chat(id, []);
chat.sendMessage({ text: "Refund order 7, and take a nap." });
await until(chat, () => asked(chat));
let napped = calls(chat).some((part) => part.state === "output-available");
if (when === "after") await until(chat, () => calls(chat).some((part) => part.state === "output-available"));
if (when === "return") await until(chat, () => chat.status === "ready");
if (when === "reload" || when === "return") {
  await chat.stop();
  chat = new Chat(id, await load());
  const resumed = chat.resumeStream();
  if (when === "return") await resumed;
  await until(chat, () => asked(chat));
}
const decided = chat.addToolApprovalResponse({ id: asked(chat).approval.id, approved: true });
console.error("decided");
await decided;
await until(chat, () => chat.status === "ready" && text(chat) === "done");
console.error("done");
console.log(JSON.stringify({ napped, page: chat.messages, second: await load() }));
