"""`analyst`: answers questions about a SQLite database by scripts, and can do nothing else.

With `CodeMode`, the model writes one script in place of a call a turn: it asks two questions at once, joins and filters the
rows, and only what it prints reaches the model. The script has no file, no network and no environment; `query_sqlite` reads
one folder (`MULLIGAN_WORKSPACE`), never writes, and a query ends after ten seconds. Needs the extra `code`.
Its model is scripted, so it runs without a key; put `openai:gpt-5-mini` in its place.

    uv run mulligan worker --load examples.analyst
    uv run mulligan start analyst "Which customers buy less than last year?" --id less --wait
    uv run mulligan show less
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

from mulligan import Agent, Call, CodeMode, Message, Say, Script, last_result
from mulligan.tools import query_sqlite

ORDERS = [("Ada", 2025, 900), ("Ada", 2026, 300), ("Grace", 2025, 400), ("Grace", 2026, 650), ("Linus", 2025, 120)]


def _make_database() -> None:
    file = Path(os.environ.get("MULLIGAN_WORKSPACE") or "workspace", "shop.db")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("CREATE TABLE orders (customer TEXT, year INTEGER, euros INTEGER)")
            database.executemany("INSERT INTO orders VALUES (?, ?, ?)", ORDERS)


@asynccontextmanager
async def resources() -> AsyncIterator[None]:
    """Make the database of the example, where the workspace has none; a worker enters it once."""
    _make_database()
    yield


analyst = Agent(
    name="analyst",
    model="scripted:analyst",
    instructions=(
        "You answer questions about the SQLite database shop.db. Look at its tables first: SELECT sql FROM sqlite_schema. "
        "Compute in the script, print only what the answer needs, and name the numbers that you rely on."
    ),
    tools=[query_sqlite],
    features=[CodeMode(max_calls=20)],
    max_steps=10,
)

TIDIES_FIRST = """
try:
    await query_sqlite(path="shop.db", sql="DELETE FROM orders WHERE euros < 0")
except ToolError as e:
    print(e)
print((await query_sqlite(path="shop.db", sql="SELECT sql FROM sqlite_schema"))["rows"])
"""
COMPARES = """
import asyncio

sql = "SELECT customer, sum(euros) FROM orders WHERE year = {} GROUP BY customer"
before, now = await asyncio.gather(
    query_sqlite(path="shop.db", sql=sql.format(2025)), query_sqlite(path="shop.db", sql=sql.format(2026))
)
bought = {row[0]: row[1] for row in now["rows"]}
for row in before["rows"]:
    less = row[1] - bought.get(row[0], 0)
    if less > 0:
        print(f"{row[0]}: {less} euros less ({100 * less // row[1]} %)")
"""


def _answers(messages: Sequence[Message]) -> Say:
    return Say(f"They buy less than in 2025: {last_result(messages)}")


script = Script(
    "analyst",
    [
        Say(calls=[Call("run_code", {"code": TIDIES_FIRST})]),
        Say(calls=[Call("run_code", {"code": COMPARES})]),
        _answers,
    ],
)
