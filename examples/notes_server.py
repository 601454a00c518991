"""A small MCP server: the agent in `librarian.py` uses it."""

from __future__ import annotations

from mcp.server import MCPServer

server = MCPServer("notes")
NOTES = {"opening hours": "9 to 5, not on Mondays.", "old prices": "A lamp was 20 euros."}


@server.tool()
def list_notes() -> list[str]:
    """List the titles of all notes."""
    return sorted(NOTES)


@server.tool()
def read_note(title: str) -> str:
    """Read a note."""
    return NOTES[title]


@server.tool()
def delete_note(title: str) -> str:
    """Delete a note."""
    del NOTES[title]
    return f"Deleted: {title}."


if __name__ == "__main__":
    server.run()
