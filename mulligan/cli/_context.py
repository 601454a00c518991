"""`mulligan show --context`: what the model was sent in a step."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mulligan.cli._terminal import OK, connect_or_fail, out, print_json
from mulligan.schema.printable import printable, printable_lines

if TYPE_CHECKING:
    from mulligan.context_view.model_context import ModelContext
    from mulligan.values import Message


async def show_context(run_id: str, step: int, conversation: str | None, *, as_json: bool) -> int:
    """Print what the model was sent in a step. `conversation`: the agent's number or name; None: the first."""
    from mulligan.context_view.model_context import read_model_context

    client = await connect_or_fail()
    context = await read_model_context(client, run_id, step, conversation)
    if as_json:
        print_json(context.model_dump(mode="json"))
    else:
        _print(context)
    return OK


def _print(context: ModelContext) -> None:
    _heading(f"step {context.step}: {context.model}")
    if context.settings:
        _text(f"settings: {json.dumps(context.settings, ensure_ascii=False)}")
    _heading("instructions")
    _text(context.instructions or "none")
    _heading(f"tools ({len(context.tools)})")
    for tool in context.tools:
        name, description = tool.get("name") or tool.get("type"), tool.get("description") or ""
        _text(f"{name}: {description}" if description else f"{name}")
        _text(f"{json.dumps(tool.get('parameters', tool), ensure_ascii=False)}", style="dim")
    if context.deferred:
        _text(f"not found yet: {', '.join(context.deferred)}", style="dim")
    if context.output is not None:
        _heading(f"format of the answer: {context.output.name}")
        _text(json.dumps(context.output.json_schema, ensure_ascii=False), style="dim")
    _heading(f"messages ({len(context.messages)})")
    for index, message in enumerate(context.messages):
        marks = [
            *(["compacted: a summary in place of older messages"] if index in context.compacted else []),
            *(["cleared: the run has the whole result"] if index in context.cleared else []),
        ]
        _print_message(index, message, marks)


def _print_message(index: int, message: Message, marks: list[str]) -> None:
    from mulligan.content import described

    content: Any = getattr(message, "content", None) or message.text
    name = f" {message.name}" if message.role == "tool" else ""
    mark = "".join(f" [{each}]" for each in marks)
    out.print(printable(f"{index + 1}. {message.role}{name}{mark}"), style="cyan", soft_wrap=True)
    if text := described(content):
        _text(text)
    if message.role == "assistant":
        for part in message.files or ():
            _text(described([part]))
        for call in message.tool_calls:
            _text(f"{call.name}({call.arguments})")


def _heading(text: str) -> None:
    out.print(printable(text), style="bold", soft_wrap=True)


def _text(text: str, style: str = "") -> None:
    # Indented, so that no line of a text looks like one of ours.
    lines = "    " + printable_lines(text).replace("\n", "\n    ")
    out.print(lines, style=style, soft_wrap=True)
