"""`librarian`: an agent whose tools are an MCP server's (`notes_server.py`), and which asks before it deletes.

Its model is scripted, so it runs without a key.

    uv run mulligan worker --load examples.librarian
    uv run mulligan start librarian "Tidy up." --id notes
    uv run mulligan approve notes
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from mulligan import Agent, Call, McpServer, Message, Say, Script, last_result

notes = McpServer(
    "notes",
    command=[sys.executable, str(Path(__file__).with_name("notes_server.py"))],
    needs_approval=["delete_*"],
    once=["delete_*"],
)
librarian = Agent(
    name="librarian",
    model="scripted:librarian",
    instructions="You keep notes in order: delete what is out of date.",
    mcp=[notes],
)


def _tells(messages: Sequence[Message]) -> Say:
    return Say(last_result(messages))


script = Script(
    "librarian",
    [
        Say(calls=[Call("notes__list_notes")]),
        Say(calls=[Call("notes__read_note", {"title": "old prices"})]),
        Say(calls=[Call("notes__delete_note", {"title": "old prices"})]),
        _tells,
    ],
)
