"""An agent whose model, tools and people write what takes over a terminal: clipboard, title, screen, text direction, lines."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan import Agent, Call, Message, Say, Script, ToolContext, ToolError, tool
from mulligan.tools import ask_person

HOSTILE = "\x1b]52;c;cm0gLXJmIH4=\x07\x1b]0;title\x07\x1b[2J\x1b[8m\x9b2J\x7f\u202e\u2066\u200b\x08\r!"
NAME = f"x\nFORGED {HOSTILE}"
"""For what is on one line: names, ids, reasons."""


@tool(description=f"Fails. {HOSTILE}")
def fail(text: str) -> str:
    raise ToolError(HOSTILE + text)


@tool
def crash(text: str) -> str:
    """Raise."""
    raise ValueError(HOSTILE + text)


@tool
def echo(text: str, ctx: ToolContext) -> str:
    """Return the text."""
    ctx.heartbeat(text)
    return text


@tool(needs_approval=True)
def refund(text: str) -> str:
    """Give money back."""
    return text


@tool(deferred=True)
def later(text: str) -> str:
    """Start something elsewhere."""
    return text


def _first(messages: Sequence[Message]) -> Say:
    if messages[0].text.startswith("waits"):
        kinds = {"refund": "text", "later": "text", "ask_person": "question"}
        calls = [Call(name, {field: NAME}, id=f"{name} {NAME}") for name, field in kinds.items()]
        return Say(HOSTILE, [*calls, Call("refund", {"text": "a"}, id="a"), Call("ask_person", {"question": HOSTILE}, id="q"),
                             Call("later", {"text": HOSTILE}, id="l")])  # fmt: skip
    tools = [NAME, "fail", "crash", "echo"]
    return Say(HOSTILE, [Call(name, {"text": NAME, NAME: 1} if name != "echo" else {"text": NAME}, id=NAME) for name in tools]
               + [Call(name, {"text": HOSTILE}) for name in ("fail", "crash")])  # fmt: skip


def _broken(messages: Sequence[Message]) -> Say:
    raise ValueError(HOSTILE)


hostile = Agent(name="hostile", model="scripted:hostile", tools=[fail, crash, echo, refund, later, ask_person])
hostile_script = Script("hostile", [_first, Say(HOSTILE)])
broken_script = Script("broken", [_broken])
