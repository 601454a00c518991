"""`demo`: a scripted agent that works on real files, and is wrong on purpose before it gets there."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan import Agent, Call, Message, Say, Script
from mulligan.script import last_result
from mulligan.tools import list_files, read_file, read_section, search_files, write_file


def _write_the_summary(messages: Sequence[Message]) -> Say:
    """What it writes is what it really read; single quotes and a trailing comma are mended on the way."""
    section = last_result(messages).replace("\n", " ").replace("'", "")
    arguments = "{'path': 'summary.md', 'content': 'From orders.md: " + section.replace("#", "").strip() + "',}"
    return Say(calls=[Call("write_file", arguments)])


def _tell(messages: Sequence[Message]) -> Say:
    return Say(f"Done. {last_result(messages)}")


script = Script(
    "demo",
    [
        # A tool that there is not: it is told the names.
        Say("Let me see what there is.", [Call("list_dir", {"path": "."})]),
        Say(calls=[Call("list_files")]),
        # A field that is missing: it is told which.
        Say("Who is waiting?", [Call("search_files", {"path": "."})]),
        Say(calls=[Call("search_files", {"text": "waiting"})]),
        # JSON that is cut off: nothing is guessed, it is told where.
        Say("I read the whole file.", [Call("read_file", '{"path": "orders.m')]),
        # A file that is not there: the tool raises, and says what is near.
        Say(calls=[Call("read_file", {"path": "order.md"})]),
        Say(calls=[Call("read_file", {"path": "orders.md"})]),
        # `element` for `selector`: the tool's fixer mends it, and the corrected call runs, once.
        Say("Only Ada's part matters.", [Call("read_section", {"path": "orders.md", "element": "Ada"})]),
        _write_the_summary,
        _tell,
    ],
)

demo = Agent(
    name="demo",
    model="scripted:demo",
    instructions="You keep the notes of a small shop.",
    tools=[list_files, read_file, read_section, search_files, write_file],
    max_steps=20,
)
