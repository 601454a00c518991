// A chat page for an agent that `mulligan serve` offers. The address names the agent and the conversation:
// http://localhost:5173/?agent=support#order-7. Close the page at any time: the run goes on, and the page returns to it.
import { useChat } from "@ai-sdk/react";
import {
  DefaultChatTransport,
  getToolName,
  isToolUIPart,
  lastAssistantMessageIsCompleteWithApprovalResponses as everyApprovalIsDecided,
  lastAssistantMessageIsCompleteWithToolCalls as everyQuestionIsAnswered,
} from "ai";
import { useEffect, useRef, useState } from "react";
import { createRoot } from "react-dom/client";

const query = new URLSearchParams(location.search);
const agent = query.get("agent") ?? "support";
const server = query.get("server") ?? "http://127.0.0.1:8300";
if (!location.hash) location.hash = crypto.randomUUID();
const id = location.hash.slice(1);
const api = `${server}/ai-sdk/${encodeURIComponent(agent)}`;

/** The conversation as the server has it, for a page that was closed and for a second device. */
async function load() {
  const response = await fetch(`${api}/${encodeURIComponent(id)}`);
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

function Page({ loaded }) {
  const { messages, setMessages, sendMessage, resumeStream, addToolApprovalResponse, addToolOutput, status, error } =
    useChat({
      id,
      messages: loaded,
      transport: new DefaultChatTransport({ api }),
      sendAutomaticallyWhen: (chat) => everyApprovalIsDecided(chat) || everyQuestionIsAnswered(chat),
    });
  const now = useRef(messages);
  now.current = messages;
  // Return to a turn in flight. If it has ended since the messages were loaded, there is no stream, and they have its answer.
  useEffect(() => {
    const isUnanswered = () => now.current.at(-1)?.role === "user";
    if (isUnanswered()) resumeStream().then(async () => isUnanswered() && setMessages(await load()));
  }, []);
  const approve = (part, approved) => addToolApprovalResponse({ id: part.approval.id, approved });
  const answer = (part, output) => addToolOutput({ tool: getToolName(part), toolCallId: part.toolCallId, output });
  return (
    <main>
      <h1>{agent}</h1>
      <ol aria-live="polite">
        {messages.map((message) => (
          <li key={message.id} className={message.role}>
            {message.parts.map((part, index) => (
              <Part key={index} part={part} approve={approve} answer={answer} />
            ))}
          </li>
        ))}
      </ol>
      {error && !messages.at(-1)?.parts.some(failure) && <Failure text={error.message} />}
      <Form label="Message" busy={status !== "ready" && status !== "error"} submit={(text) => sendMessage({ text })} />
    </main>
  );
}

/** What a turn failed with. It stays in the conversation. */
const failure = (part) => part.type === "data-mulligan" && part.data.type === "run_ended" && part.data.error?.message;

function Failure({ text }) {
  try {
    text = JSON.parse(text).error ?? text; // a refusal of the server
  } catch {} // the error of a stream is a sentence
  return <p role="alert">{text}</p>;
}

function Part({ part, approve, answer }) {
  if (part.type === "text") return <p>{part.text}</p>;
  if (failure(part)) return <Failure text={failure(part)} />;
  if (!isToolUIPart(part)) return null; // data-mulligan: repairs, sub-agents, and what else the run says of itself
  const question = part.state === "input-available" && part.toolMetadata?.mulligan?.question;
  return (
    <section>
      <code>
        {getToolName(part)}({JSON.stringify(part.input ?? {})})
      </code>
      {part.state === "approval-requested" && (
        <p>
          Approve this call? <button onClick={() => approve(part, true)}>Approve</button>{" "}
          <button onClick={() => approve(part, false)}>Deny</button>
        </p>
      )}
      {question && <Form label={question} submit={(text) => answer(part, text)} />}
      {part.state === "output-available" && <samp>{String(part.output)}</samp>}
      {part.state === "output-denied" && <samp>Denied</samp>}
      {part.state === "output-error" && <samp>Failed: {part.errorText}</samp>}
    </section>
  );
}

function Form({ label, busy = false, submit }) {
  const [text, setText] = useState("");
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        if (!text.trim()) return;
        submit(text);
        setText("");
      }}
    >
      <label>
        {label} <input value={text} onChange={(event) => setText(event.target.value)} />
      </label>{" "}
      <button disabled={busy}>Send</button>
    </form>
  );
}

const root = createRoot(document.getElementById("page"));
load().then(
  (messages) => root.render(<Page loaded={messages} />),
  (error) => root.render(<Failure text={error.message} />),
);
