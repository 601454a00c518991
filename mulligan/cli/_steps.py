"""A run's steps and its end as text for the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from mulligan.schema.printable import json_line, printable, printable_lines

if TYPE_CHECKING:
    from mulligan.client.read_run import RunEnd
    from mulligan.run_view.step_view import CallView, StepView
    from mulligan.values import Decision, ErrorInfo, RuleUse, Step, StepCall, StepCompaction, SubRun
    from mulligan.wire.event_types import Compacted

LONGEST = 160
"""Characters of a result, or of arguments, that are shown. --json has all of them."""
DECISIONS = {"approve": "approved", "deny": "denied", "answer": "answered"}
_LINE_OF_CODE = re.compile(r"^line \d+, column \d+:.*", re.MULTILINE)
"""What is wrong with a script, in the text that the model read."""
SIGNS = {"ok": ("✓", "green"), "failed": ("✗", "red"), "repaired": ("↻", "yellow"), "running": ("…", "cyan")}


def step_views(
    steps: Iterable[dict[str, Any]], below: Callable[[int], Callable[[str], Iterable[RenderableType]]]
) -> Iterator[RenderableType]:
    """Render steps. `below`: for a step's number, what renders what belongs to a call's id."""
    from mulligan.values import Step

    before = None
    for each in map(Step.model_validate, steps):
        yield step_view(each, below(each.step), before)
        before = each


def step_view(
    step: Step, below: Callable[[str], Iterable[RenderableType]] | None = None, before: Step | None = None
) -> RenderableType:
    """Render a step: the model's text, and each call with its result; agent and model where they change. `below` renders
    what belongs to a call's id. `before`: the step before it.
    """
    head = Text(f"step {step.step}", style="bold")
    if before is not None and (step.agent, step.model) != (before.agent, before.model):
        head.append(f"  {short(step.agent, 100)} · {short(step.model, 100)}", style="not bold cyan")
    if step.shared:
        head.append("  (shared)", style="not bold dim")
    if step.text:
        head.append(f"  {short(step.text)}", style="not bold italic")
    lines: list[RenderableType] = [compaction_line(step.compaction), head] if step.compaction else [head]
    lines += hosted_lines(step)
    for call in step.tool_calls:
        decided = call.decision if call.decision and call.decision.decision in ("approve", "answer") else None
        details = [decision_line(call, decided)] if decided else []
        is_edited = decided is not None and decided.edited
        lines += call_lines(call, [*details, run_line(call.run)] if call.run else details, is_edited=is_edited)
        lines += below(call.id) if below else ()
        for inner in call.calls:  # of a script
            lines += [Padding(line, (0, 0, 0, 2), expand=False) for line in call_lines(inner)]
            lines += below(inner.id) if below else ()
    if step.error:
        lines.append(Padding(error_line(step.error), (0, 0, 0, 2), expand=False))
    return Group(*lines)


def error_line(error: ErrorInfo, indent: str = "") -> Text:
    """The line for an answer that was rejected."""
    return Text(f"{indent}✗ {error.kind}: {short(error.message)}", "red")


def hosted_lines(step: Step | StepView) -> list[RenderableType]:
    """The calls that the provider carried out itself, the sources that the answer names, and what it made, a line each."""
    lines = []
    for call in step.hosted_calls:
        sign, colour = SIGNS["ok" if call.status == "completed" else "failed" if call.status == "failed" else "running"]
        name = (f"{short(call.name, 100)} ", "bold")
        lines.append(
            Text.assemble((f"{sign} ", colour), name, short(call.arguments, 100), ("  by the provider", "dim"))
        )
    for cited in step.citations:
        title = f"{short(cited.title, 100)}  " if cited.title else ""
        lines.append(Text(f"↗ {title}{short(cited.url)}", "dim"))
    if step.files:
        from mulligan.content import described

        lines += [Text(short(described([part])), style="dim") for part in step.files]
    return [Padding(line, (0, 0, 0, 2), expand=False) for line in lines]


def compaction_line(compaction: StepCompaction | Compacted) -> Text:
    """The line for a compaction before a step, or for a failed compaction."""
    messages = counted(compaction.messages, "message")
    if error := compaction.error:
        return Text(f"✗ summing up {messages} failed: {error.kind}: {short(error.message)}", style="red")
    return Text.assemble((f"∑ {messages} summed up: ", "yellow"), (short(compaction.text), "dim"))


def call_lines(
    call: StepCall | CallView, details: Iterable[Text] = (), *, is_edited: bool = False
) -> list[RenderableType]:
    """A call as lines: the call, its repairs, `details`, its result or error. `is_edited`: a person gave its arguments."""
    result = call.result
    state = "running" if result is None else "failed" if result.error else "repaired" if call.repairs else "ok"
    sign, colour = SIGNS[state]
    # Arguments that a person has edited are those that ran; others are shown as the model wrote them.
    arguments = as_text(call.arguments) if is_edited else call.raw_arguments
    head = Text.assemble((f"{sign} ", colour), (short(call.name, 100), "bold"), " ", short(arguments, 100))
    lines = []
    for repair in call.repairs:
        changed = f"{short(as_text(repair.before), 70)} → {short(as_text(repair.after), 70)}"
        lines.append(Text.assemble(("repaired by ", "yellow"), (repair.by, "yellow bold"), f": {changed}"))
    lines += details
    attempts = f" (attempt {call.attempts})" if call.attempts > 1 else ""
    attempts += " (recorded)" if getattr(call, "recorded", False) else ""
    attempts += " (untrusted)" if result is not None and result.trust else ""
    if result is not None and result.error:
        text = Text.assemble((f"returned to the model{attempts}: ", "red"), (result.error.kind, "red bold"), " ")
        lines.append(text.append(short(result.error.message)))
        lines += [Text(short(fault), style="red") for fault in _LINE_OF_CODE.findall(result.text)]
    elif result is not None:
        from mulligan.content import described

        lines.append(Text(short(described(result.content or result.text)) + attempts, style="dim"))
    indented = [Padding(line, (0, 0, 0, 6), expand=False) for line in lines]
    return [Padding(head, (0, 0, 0, 2), expand=False), *indented]


def decision_line(call: StepCall, decision: Decision) -> Text:
    """Who approved a call, and with which arguments; or who answered. A denial is in the call's error."""
    by = f" by {short(decision.by, 100)}" if decision.by else ""
    line = Text(f"{DECISIONS[decision.decision]}{by}{by_rule(decision.rule)}", style="cyan")
    if decision.reason:
        line.append(f": {short(decision.reason)}")
    if decision.edited:
        edited = f"edited by {short(decision.edited_by, 100)}" if decision.edited_by else "edited"
        line.append(f"; {edited}: {short(as_text(decision.before), 70)} → {short(as_text(call.arguments), 70)}")
    return line


def by_rule(rule: RuleUse | None) -> str:
    """By which rule a call was approved, and when it was made; empty where a person has decided on the call itself."""
    return f" by the rule {short(rule.name)} of {rule.at[:16].replace('T', ' ')}" if rule is not None else ""


def run_line(run: SubRun) -> Text:
    """A sub-agent's run: its status, steps, tokens and cost, and its id."""
    colour = {"completed": "green", "running": "cyan"}.get(run.status, "red")
    usage, steps = run.usage, counted(run.steps, "step")
    tokens = f", {usage.input_tokens} + {usage.output_tokens} tokens" if usage.input_tokens else ""
    cost = cost_text(run.cost, tokens=usage.input_tokens + usage.output_tokens)
    agent = f" {short(run.agent)} " if run.agent else " "
    numbers = f", {steps}{tokens}{cost}" if run.steps else ""
    return Text.assemble("↳", (agent, "bold"), (run.status, colour), numbers, (f"  {short(run.id)}", "dim"))


def end_view(end: RunEnd) -> RenderableType:
    """How a run ended: its output and its numbers, or its error."""
    colour = "green" if end.completed else "red"
    lines: list[RenderableType] = []
    if end.result is not None:
        result = end.result
        if result.get("output") not in (None, ""):
            lines.append(Text(printable_lines(as_text(result["output"]))))
        if "usage" in result:
            usage = result["usage"]
            numbers = (
                f"{counted(result['steps'], 'step')}, {counted(result['tool_calls'], 'tool call')}, "
                f"{counted(result['recovered_failures'], 'recovered failure')}, {counted(result['repairs'], 'repair')}, "
                f"{usage['input_tokens']} + {usage['output_tokens']} tokens{cost_of(result)}"
            )
            lines.append(Text.assemble((end.status, f"bold {colour}"), f": {numbers}; trace {result['trace_id']}"))
            if reason := result.get("reason"):
                lines.append(Text(printable_lines(reason)))
        else:  # a workflow of a user's own
            lines.append(Text(end.status, style=f"bold {colour}"))
    elif end.error is not None:
        text = f": {end.error['kind']}: {end.error['message']}"
        lines.append(
            Text.assemble((end.status, f"bold {colour}"), printable_lines(text).replace("\n", "\n    "))
        )  # no line of it looks like ours
    else:
        lines.append(Text(end.status, style=f"bold {colour}"))
    return Group(*lines)


def cost_of(result: dict[str, Any]) -> str:
    """The cost of a result or a progress in US dollars, as `, $1.25`; or that its price is unknown. Empty if it is zero."""
    usage = result.get("usage") or {}
    return cost_text(result.get("cost"), tokens=usage.get("input_tokens", 0) + usage.get("output_tokens", 0))


def cost_text(cost: float | None, *, tokens: int) -> str:
    """US dollars as in `cost_of`. `tokens`: those that were used."""
    if cost is None:
        return ", price unknown" if tokens else ""
    return f", ${cost:.6f}".rstrip("0").rstrip(".") if cost else ""


def as_text(value: Any) -> str:
    """A text unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json_line(value)


def counted(number: int, thing: str) -> str:
    """Return a number with its noun: `1 step`, `2 steps`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def short(text: str, longest: int = LONGEST) -> str:
    """A text on one line, with escapes for control characters, truncated to `longest` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= longest else printable(line[:longest]) + "…"  # the end may be half of a flag
