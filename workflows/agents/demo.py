"""`demo`: a scripted agent that works on real files, and makes mistakes on purpose."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan import Agent, Call, Message, Say, Script, last_result
from mulligan.tools import list_files, read_file, read_section, search_files, write_file


def _write_the_summary(messages: Sequence[Message]) -> Say:
    """Write what was read from the file. The arguments have single quotes and a trailing comma, which are repaired."""
    section = last_result(messages).replace("\n", " ").replace("'", "")
    arguments = "{'path': 'summary.md', 'content': 'From orders.md: " + section.replace("#", "").strip() + "',}"
    return Say(calls=[Call("write_file", arguments)])


def _report_result(messages: Sequence[Message]) -> Say:
    return Say(f"Done. {last_result(messages)}")


script = Script(
    "demo",
    [
        # An unknown tool: the feedback lists the tools.
        Say("Let me see what there is.", [Call("list_dir", {"path": "."})]),
        Say(calls=[Call("list_files")]),
        # A required field is missing: the feedback names it.
        Say("Who is waiting?", [Call("search_files", {"path": "."})]),
        Say(calls=[Call("search_files", {"text": "waiting"})]),
        # JSON that is cut off: it is not completed by guessing, and the feedback says where it ends.
        Say("I read the whole file.", [Call("read_file", '{"path": "orders.m')]),
        # A file that does not exist: the tool raises an error that names a similar file.
        Say(calls=[Call("read_file", {"path": "order.md"})]),
        Say(calls=[Call("read_file", {"path": "orders.md"})]),
        # A wrong field name: the tool's fixer repairs the arguments, and the call runs once.
        Say("Only Ada's part matters.", [Call("read_section", {"path": "orders.md", "element": "Ada"})]),
        _write_the_summary,
        _report_result,
    ],
)

demo = Agent(
    name="demo",
    model="scripted:demo",
    instructions="You keep the notes of a small shop.",
    tools=[list_files, read_file, read_section, search_files, write_file],
    max_steps=20,
)
