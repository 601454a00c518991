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
const sdk = query.get("sdk") ? `?sdk=${query.get("sdk")}` : ""; // 6, if the page is built with version 6 of `ai`
const api = `${server}/ai-sdk/${encodeURIComponent(agent)}`;

/** The conversation as the server has it, for a page that was closed and for a second device. */
async function load() {
  const response = await fetch(`${api}/${encodeURIComponent(id)}${sdk}`);
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

function Page({ loaded }) {
  const { messages, setMessages, sendMessage, regenerate, resumeStream, status, error, ...chat } = useChat({
    id,
    messages: loaded,
    transport: new DefaultChatTransport({ api: api + sdk }),
    sendAutomaticallyWhen: (chat) => everyApprovalIsDecided(chat) || everyQuestionIsAnswered(chat),
  });
  const [edited, setEdited] = useState(null); // the message of the user that is being edited
  const busy = status !== "ready" && status !== "error";
  const last = messages.at(-1);
  const waits = last?.parts.some((part) => isToolUIPart(part) && (asksApproval(part) || questionOf(part)));
  const now = useRef(messages);
  now.current = messages;
  // Return to a turn in flight. If it has ended since the messages were loaded, there is no stream, and they have its answer.
  useEffect(() => {
    const isUnanswered = () => now.current.at(-1)?.role === "user";
    if (isUnanswered()) resumeStream().then(async () => isUnanswered() && setMessages(await load()));
  }, []);
  const approve = (part, approved) => chat.addToolApprovalResponse({ id: part.approval.id, approved });
  const answer = (part, output) => chat.addToolOutput({ tool: getToolName(part), toolCallId: part.toolCallId, output });
  return (
    <main>
      <h1>{agent}</h1>
      <ol aria-live="polite">
        {messages.map((message) => (
          <li key={message.id} className={message.role}>
            {message.id === edited ? (
              <Form
                label="Edit"
                initial={message.parts.map((part) => part.text ?? "").join("")}
                submit={(text) => {
                  setEdited(null);
                  sendMessage({ text, messageId: message.id }); // what came after it is left behind
                }}
              />
            ) : (
              message.parts.map((part, index) => <Part key={index} part={part} approve={approve} answer={answer} />)
            )}
            {message.role === "user" && message.id !== edited && !busy && !waits && (
              <button onClick={() => setEdited(message.id)}>Edit</button>
            )}
          </li>
        ))}
      </ol>
      {error && !last?.parts.some(failure) && <Failure text={sentence(error)} />}
      {last && !busy && !waits && <button onClick={() => regenerate({ messageId: last.id })}>Answer again</button>}
      <Form label="Message" busy={busy} submit={(text) => sendMessage({ text })} />
    </main>
  );
}

const asksApproval = (part) => part.state === "approval-requested";
const questionOf = (part) => part.state === "input-available" && part.toolMetadata?.mulligan?.question;

/** What a turn failed with. It stays in the conversation. */
const failure = (part) => part.type === "data-mulligan" && part.data.type === "run_ended" && part.data.error?.message;

/** An error as a sentence: what the server refuses is JSON, what its stream ends with is a sentence already. */
function sentence(error) {
  if (error instanceof TypeError) return `The server ${server} does not answer. Send it again later.`; // fetch's error
  try {
    return JSON.parse(error.message).error;
  } catch {
    return error.message;
  }
}

const Failure = ({ text }) => <p role="alert">{text}</p>;

function Part({ part, approve, answer }) {
  if (part.type === "text") return <p>{part.text}</p>;
  if (failure(part)) return <Failure text={failure(part)} />;
  if (!isToolUIPart(part)) return null; // data-mulligan: repairs, sub-agents, and what else the run says of itself
  const question = questionOf(part);
  return (
    <section>
      <code>
        {getToolName(part)}({JSON.stringify(part.input ?? {})})
      </code>
      {asksApproval(part) && (
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

function Form({ label, initial = "", busy = false, submit }) {
  const [text, setText] = useState(initial);
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
  (error) => root.render(<Failure text={sentence(error)} />),
);
