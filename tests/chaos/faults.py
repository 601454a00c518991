"""What must hold after any kills: the ledger, the conversation, the spans and the history agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.chaos.plan import Outcome
from tests.chaos.seed import failed_workflow_tasks
from tests.support.otlp_receiver import Span

TOKENS_OF_STEP = 10
"""The input tokens of each answer of the scripted model."""
WITHOUT_LEDGER = ("clerk", "lent__echo")
"""A sub-agent, whose tools are in the ledger, and the tool of an MCP server."""
MOST_STARTS = {"pay": 1, "refund": 1, "fetch": 3, "flaky": 2, "refuse": 1}
"""How often each tool may start; `look` is local, and may run again after each kill."""


def faults_of(outcome: Outcome) -> list[str]:
    """A sentence for each rule that the seed broke."""
    found = list(of_ledger(outcome))
    for number in range(outcome.plan.runs):
        run = f"chaos-{outcome.plan.seed}-{number}"
        result = outcome.results.get(run)
        if result is None:
            found.append(f"stuck: {run} did not end")
        elif result["status"] != "completed":
            found.append(f"failed: {run} ended as {result['status']}")
        else:
            found += _of_run(outcome, run, result)
    return found


def of_ledger(outcome: Outcome) -> Iterator[str]:
    """What ran more often than it may."""
    starts = Counter((entry["tool"], entry["key"]) for entry in outcome.ledger if entry["event"] == "start")
    for (tool, key), count in starts.items():
        if count > MOST_STARTS.get(tool, count):
            yield f"repeated: {tool} {key} started {count} times"
    attempts = Counter(
        (e["key"], e["attempt"]) for e in outcome.ledger if e["event"] == "start" and e["tool"] != "look"
    )
    for (key, attempt), count in attempts.items():
        if count > 1:
            yield f"repeated: attempt {attempt} of {key} started {count} times"


def _of_run(outcome: Outcome, run: str, result: dict[str, Any]) -> Iterator[str]:
    ran = defaultdict(list)
    for entry in outcome.ledger:
        if entry["run"] == run:
            ran[entry["call"]].append(entry)
    calls = [call for step in outcome.steps[run] for call in step["tool_calls"]]
    for call in calls:
        entries, error = ran[call["id"]], call["result"]["error"]
        ended = any(entry["event"] == "end" for entry in entries)
        kind = error["kind"] if error else None
        if kind is None and not ended and call["name"] not in WITHOUT_LEDGER:
            yield f"invented: {run} {call['id']} has a result, but did not end"
        if kind == "tool_lost" and entries and "may or may not" not in call["result"]["text"]:
            yield f"denied: {run} {call['id']} ran, and is reported as if it had not"
        if kind not in (None, "tool_lost", "unknown_tool", "tool_error", "tool_exception"):
            yield f"unexpected: {run} {call['id']} failed as {kind}"
    messages = outcome.messages[run]
    is_simple = outcome.plan.agent == "ledger"
    yield from _of_conversation(run, calls, messages, outcome.requests[run], is_whole=is_simple)
    if result["steps"] != len(outcome.steps[run]) or result["tool_calls"] != len(calls):
        yield f"miscounted: {run} says {result['steps']} steps, {result['tool_calls']} calls; {len(calls)} are recorded"
    if is_simple and result["usage"]["input_tokens"] != TOKENS_OF_STEP * result["steps"]:
        yield f"miscounted: {run} says {result['usage']} of {result['steps']} steps"
    yield from _of_spans(outcome, run, result, calls)


def _of_conversation(
    run: str,
    calls: list[dict[str, Any]],
    messages: list[dict[str, Any]],
    seen: list[dict[str, Any]],
    *,
    is_whole: bool,
) -> Iterator[str]:
    """`is_whole`: whether the model saw all messages; after a compaction it sees the newest ones, after a summary."""
    results = [message["call_id"] for message in messages if message["role"] == "tool"]
    if results != [call["id"] for call in calls]:
        yield f"disordered: {run} has results {results} for calls {[call['id'] for call in calls]}"
    recorded = [(message["role"], message["text"]) for message in messages[:-1]]
    of_model = [(each["role"], each.get("content") or "") for each in seen if each["role"] != "system"]
    if not is_whole:
        newest = next(
            (n for n in range(len(of_model)) if recorded[-1:] and of_model[n:] == recorded[n - len(of_model) :]), None
        )
        recorded, of_model = ([], []) if newest is not None and newest <= 2 else (recorded, of_model)
    if recorded != of_model:
        yield f"different: {run} recorded {recorded}, the model saw {of_model}"


def _of_spans(outcome: Outcome, run: str, result: dict[str, Any], calls: list[dict[str, Any]]) -> Iterator[str]:
    spans = [span for span in outcome.spans if span.trace_id == result["trace_id"]]
    for span_id, count in Counter(span.span_id for span in spans).items():
        if count > 1:
            name = next(span.name for span in spans if span.span_id == span_id)
            yield f"span exported twice: {run} {name} {span_id}"
    ids = {span.span_id for span in spans}
    for span in spans:
        if span.parent_span_id not in ids and not span.name.startswith("invoke_agent"):
            yield f"span without parent: {run} {span.name}"
    names = Counter(span.name for span in spans)
    if outcome.plan.agent != "ledger":
        return  # the spans of sub-agents are in the same trace
    for name in ("invoke_agent ledger", "agent.finish"):
        if names[name] != 1:
            yield f"span missing or repeated: {run} has {names[name]} of {name}"
    attempts = Counter(
        (s.attributes["ai.toolCall.id"], s.attributes["mulligan.attempt"]) for s in spans if s.name == "ai.toolCall"
    )
    for call in calls:
        made = sorted(attempt for call_id, attempt in attempts if call_id == call["id"])
        if made != list(range(1, max(1, call["attempts"]) + 1)):
            yield f"span missing: {run} {call['id']} was attempted {call['attempts']} times, spans {made}"
    yield from _of_chat_spans(run, result["steps"], spans)


def _of_chat_spans(run: str, steps: int, spans: list[Span]) -> Iterator[str]:
    chats: defaultdict[int, list[int]] = defaultdict(list)
    for span in spans:
        if span.name.startswith("chat "):
            chats[span.attributes["mulligan.step"]].append(span.attributes["mulligan.attempt"])
    for step in range(1, steps + 1):
        if sorted(chats[step]) != list(range(1, len(chats[step]) + 1)) or not chats[step]:
            yield f"span missing or repeated: {run} step {step} has chat spans of attempts {sorted(chats[step])}"


class Pause(NamedTuple):
    """From a fault to the next attempt or step of a run that it hit. `kind`: what it was in the middle of."""

    kind: str
    seconds: float
    run: str
    since: float


def pauses_of(outcome: Outcome) -> Iterator[Pause]:
    """One for each thing that a fault hit."""
    if outcome.plan.victim in ("child", "point", "unsupervised", "frozen"):
        yield from _pauses_of_processes(outcome)
    elif outcome.plan.victim == "endpoint":
        for cut, run in outcome.broken_model_calls:
            after = next((at for at, each, _ in outcome.model_calls if each == run and at > cut), None)
            if after is not None:
                yield Pause("model call", after - cut, run, cut)
    else:
        for kill in outcome.kills:
            for run, ended in outcome.ended_at.items():
                after = next((at for at, each, _ in _events(outcome) if each == run and at > kill.at), None)
                if after is not None and after < ended:
                    yield Pause("run", after - kill.at, run, kill.at)


def _events(outcome: Outcome) -> list[tuple[float, str, str]]:
    return sorted(
        [(at, run, "model") for at, run, _ in outcome.model_calls]
        + [(e["at"], e["run"], "tool") for e in outcome.ledger if e["event"] == "start"]
    )


def _pauses_of_processes(outcome: Outcome) -> Iterator[Pause]:
    events = _events(outcome)
    for kill in outcome.kills:
        for entry in _running_in(outcome, kill.pid, kill.at):
            after = next((at for at, run, _ in events if run == entry["run"] and at > kill.at), None)
            if after is not None:
                kind = "local tool" if entry["tool"] == "look" else "tool"
                yield Pause(kind, after - kill.at, entry["run"], kill.at)
        if outcome.plan.victim == "frozen":
            continue
        for at, run in outcome.broken_model_calls:
            if 0 <= at - kill.at < 0.25:
                after = next(
                    (later for later, each, kind in events if each == run and kind == "model" and later > kill.at), None
                )
                if after is not None and after > at:  # else the next request arrived while its caller died
                    yield Pause("model call", after - kill.at, run, kill.at)
        for run, history in outcome.history.items():
            for at, completed in failed_workflow_tasks(history):
                before = max((each.at for each in outcome.kills if each.at <= at), default=None)
                if completed is not None and before == kill.at and at - kill.at < 12:
                    yield Pause("workflow task", completed - kill.at, run, kill.at)


def _running_in(outcome: Outcome, pid: int, at: float) -> Iterator[dict[str, Any]]:
    """The tool calls that a process ran when it was killed: those that started in it and did not end."""
    ended = {(e["key"], e["attempt"], e["pid"]): e["at"] for e in outcome.ledger if e["event"] == "end"}
    for entry in outcome.ledger:
        has_started = entry["event"] == "start" and entry["pid"] == pid and entry["at"] < at
        if has_started and ended.get((entry["key"], entry["attempt"], entry["pid"]), at + 1) > at:
            yield entry
