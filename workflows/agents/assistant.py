"""`assistant`: an agent that works on the files of one folder."""

from mulligan import Agent
from mulligan.tools import list_files, query_sqlite, read_file, search_files, write_file

assistant = Agent(
    name="assistant",
    model="openai:gpt-5-mini",
    instructions=(
        "You are a careful assistant who works on the files of one folder, the workspace. Paths are relative to it.\n"
        "Look before you write: list or search first, read what you are about to change, and change only what was asked "
        "for. Where a tool tells you that something went wrong, read what it says and correct your call.\n"
        "End with a short answer that says what you found or did, naming the files."
    ),
    tools=[list_files, read_file, search_files, query_sqlite, write_file],
    max_steps=40,
)
