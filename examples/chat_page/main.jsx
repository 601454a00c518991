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
import { useEffect, useState } from "react";
import { createRoot } from "react-dom/client";

const query = new URLSearchParams(location.search);
const agent = query.get("agent") ?? "support";
const server = query.get("server") ?? "http://127.0.0.1:8300";
if (!location.hash) location.hash = crypto.randomUUID();
const id = location.hash.slice(1);
const storage = `${server}/${agent}#${id}`;

function Page() {
  const { messages, sendMessage, addToolApprovalResponse, addToolOutput, status, error } = useChat({
    id,
    messages: JSON.parse(localStorage.getItem(storage) ?? "[]"),
    resume: true, // return to a run that is open
    transport: new DefaultChatTransport({ api: `${server}/ai-sdk/${encodeURIComponent(agent)}` }),
    sendAutomaticallyWhen: (chat) => everyApprovalIsDecided(chat) || everyQuestionIsAnswered(chat),
  });
  // The server sends the message of an open run. The page keeps those of earlier turns.
  useEffect(() => localStorage.setItem(storage, JSON.stringify(messages)), [messages]);
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
      {error && <p role="alert">{error.message}</p>}
      <Form label="Message" busy={status !== "ready" && status !== "error"} submit={(text) => sendMessage({ text })} />
    </main>
  );
}

function Part({ part, approve, answer }) {
  if (part.type === "text") return <p>{part.text}</p>;
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

createRoot(document.getElementById("page")).render(<Page />);
