"""`query_sqlite`: read a SQLite database of the workspace with SQL.

Neither a model's SQL nor the database can be trusted, so it follows SQLite's own advice for both
(https://www.sqlite.org/security.html, "Defense Against The Dark Arts"): an authorizer that permits only reading, low
limits, no trust in the schema, a time limit.

SQLite opens files by name: it follows links, `/proc/self/fd/…` too, and looks for journals beside what it finds. So it
gets a private copy, made through the descriptor that `tools.workspace` opened: nothing outside can be read, the original
is not locked, and a write-ahead log is read without permission to write into the workspace.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from mulligan import ToolError, tool
from mulligan.tools.workspace import Place, not_a_file, open_entry, open_folder, resolve, shown

QUERY_WITHIN = 10.0
"""Seconds for a query."""

MAX_FILE_BYTES = 256_000_000
"""Bytes of a database: they are copied for each query, which takes some tenths of a second for so many."""

MAX_SHOWN = 24_000
"""Characters of rows in one result: below the limit of a tool's result."""

MAX_TEXT = 2_000
"""Characters of one text."""

_MAGIC = b"SQLite format 3\0"
_HOT_JOURNAL = bytes.fromhex("d9d505f920a163d7")
_TRIES = 3

# As SQLite's page advises; wider where a schema or an ordinary query may need it.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_LENGTH: 4_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,  # matching can take exponential time, and nothing interrupts it
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 10,  # full-text search has some of its own
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_ACTIONS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
# Full-text search uses data_version.
_PRAGMAS = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"}
_PRAGMAS_OF_SQLITE = {"data_version"}
# Most are not in the library but in SQLite's shell: a library may have been built with them.
_FUNCTIONS_DENIED = {"load_extension", "fts3_tokenizer", "writefile", "readfile", "edit", "zipfile", "lsmode", "fsdir"}


@tool(timeout=15, attempts=2, isolated=True)
def query_sqlite(
    path: str,
    sql: Annotated[str, Field(min_length=1, max_length=20_000)],
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100,
) -> dict[str, Any]:
    """Query a SQLite database of the workspace. Read-only; one statement.

    What tables there are: SELECT name, sql FROM sqlite_schema.

    Args:
        path: Path of the database file, relative to the workspace.
        sql: One SELECT or WITH statement of SQLite.
        limit: How many rows to give at most.

    Returns:
        `columns`: their names; `rows`: a list of values for each row, with blobs as "<blob, N bytes>" and long texts cut;
        `more`: whether there are more rows than were given.

    Raises:
        ToolError: there is no such database, or SQLite refuses the query.
    """
    place = resolve(path)
    if not sql.strip(" \t\r\n;"):
        raise ToolError("The query is empty. Give one SELECT statement.")
    with _copied(place) as copy, closing(_opened(copy)) as database:
        try:
            return _rows(database, sql, limit)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            # ValueError: a NUL, or a lone surrogate, in the query
            raise ToolError(_explained(database, error, place)) from error


@contextmanager
def _copied(place: Place) -> Iterator[Path]:
    """A copy of a database, with its write-ahead log, in a folder of its own that is removed afterwards."""
    if not place.parts:
        raise ToolError("'.' is the workspace folder itself, not a file. List what is in it with list_files.")
    *_, name = place.parts
    log, journal = (Place((*place.folder.parts, f"{name}{suffix}")) for suffix in ("-wal", "-journal"))
    with tempfile.TemporaryDirectory(prefix="mulligan-") as private, open_folder(place.folder) as folder:
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(0.2)
            before = [_state(folder, each) for each in (place, log, journal)]
            _copy(folder, place, Path(private, "copy"))
            with Path(private, "copy").open("rb") as copy:
                start = copy.read(20)
            if start[:16] != _MAGIC:
                raise ToolError(f"'{place}' is not a SQLite database{'' if start else ': the file is empty'}.")
            Path(private, "copy-wal").unlink(missing_ok=True)
            if before[1] is not None and start[18] == 2:  # the format that says: there may be a write-ahead log
                _copy(folder, log, Path(private, "copy-wal"))
            # If another program wrote meanwhile, the copy may contain half a change.
            if before == [_state(folder, each) for each in (place, log, journal)] and not _is_hot(folder, journal):
                yield Path(private, "copy")
                return
    raise ToolError(f"'{place}' is being written to, or its last change was never finished. Try again later.")


def _copy(folder: int, place: Place, target: Path) -> None:
    with open_entry(folder, place) as file, target.open("wb") as copy:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            raise ToolError(f"'{place}' has {size:,} bytes, and at most {MAX_FILE_BYTES:,} can be queried.")
        shutil.copyfileobj(file, copy, 1 << 20)


def _state(folder: int, place: Place) -> tuple[int, int, int] | None:
    """Inode, size and modification time, which change when a file is written; None where there is no file."""
    try:
        status = os.stat(place.parts[-1], dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return None if not_a_file(status, place) else (status.st_ino, status.st_size, status.st_mtime_ns)


def _is_hot(folder: int, journal: Place) -> bool:
    """Whether there is a rollback journal of a change that was not finished."""
    if _state(folder, journal) is None:
        return False
    with suppress(ToolError), open_entry(folder, journal) as file:
        return file.read(8) == _HOT_JOURNAL
    return False


def _opened(copy: Path) -> sqlite3.Connection:
    """A connection that can only read."""
    database = sqlite3.connect(f"{copy.as_uri()}?mode=ro", uri=True, isolation_level=None)
    for pragma in (
        "trusted_schema = OFF",
        "cell_size_check = ON",
        "mmap_size = 0",
        "query_only = ON",
        "temp_store = MEMORY",
    ):
        database.execute(f"PRAGMA {pragma}")
    for limit, most in _LIMITS.items():
        database.setlimit(limit, most)
    database.text_factory = lambda data: data.decode("utf-8", "replace")
    end = time.monotonic() + QUERY_WITHIN
    database.set_progress_handler(lambda: time.monotonic() > end, 10_000)
    database.set_authorizer(_authorize)
    return database


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """SQLite's authorizer: whether a statement may take an action; called while the statement is compiled."""
    allowed = action in _ACTIONS
    if action == sqlite3.SQLITE_FUNCTION:
        allowed = (second or "").lower() not in _FUNCTIONS_DENIED
    if action == sqlite3.SQLITE_UPDATE:
        # Needed when a virtual table (json_each, full-text search) is declared to this connection. Nothing is written:
        # SQLite forbids changes of this table, and the copy is opened read-only.
        allowed = first == "sqlite_master"
    if action == sqlite3.SQLITE_PRAGMA:
        allowed = (first or "").lower() in (_PRAGMAS | _PRAGMAS_OF_SQLITE)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _rows(database: sqlite3.Connection, sql: str, limit: int) -> dict[str, Any]:
    cursor = database.execute(sql)
    if cursor.description is None:
        raise ToolError("The query contains no statement. Give one SELECT statement.")
    columns = [shown(column[0])[:200] for column in cursor.description]
    widest = max(20, min(MAX_TEXT, MAX_SHOWN // len(columns)))
    rows: list[list[Any]] = []
    length = 0
    for row in cursor:
        if len(rows) == limit:
            return {"columns": columns, "rows": rows, "more": True}
        values = [_plain(value, widest) for value in row]
        length += sum(len(str(value)) + 4 for value in values)
        if rows and length > MAX_SHOWN:
            return {"columns": columns, "rows": rows, "more": True}
        rows.append(values)
    return {"columns": columns, "rows": rows, "more": False}


def _plain(value: Any, widest: int) -> Any:
    """A value as JSON."""
    if isinstance(value, bytes):
        return f"<blob, {len(value):,} bytes>"
    if isinstance(value, str) and len(value) > widest:
        return f"{value[:widest]}… <{len(value) - widest:,} more characters>"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)  # JSON has no infinity
    return value


def _explained(database: sqlite3.Connection, error: Exception, place: Place) -> str:
    """The text of an error for the model."""
    said = shown(str(error))[:500]
    if said == "interrupted":
        return f"The query was stopped after {QUERY_WITHIN:g} seconds. Ask for less."
    if said == "not authorized" or "prohibited" in said:
        return f"Only reading is permitted: SELECT, WITH, EXPLAIN, and PRAGMA {', '.join(sorted(_PRAGMAS))}. ({said})"
    if "one statement" in said:
        return "Give one statement at a time."
    if "too big" in said:
        return f"A value has more than 4,000,000 bytes. Do not select it; length(column) tells its size. ({said})"
    if "malformed" in said or "not a database" in said or "unable to open" in said:
        return f"'{place}' cannot be read: {said}. It may be damaged."
    if "no such" in said:
        return f"SQLite says: {said}. {_tables(database)}"
    return f"SQLite says: {said}."


def _tables(database: sqlite3.Connection) -> str:
    """A list of the tables and their columns, for the model."""
    listed = []
    try:
        names = database.execute(
            "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT GLOB 'sqlite_*' LIMIT 50"
        ).fetchall()
        for (name,) in names:
            columns: list[Any] = []
            with suppress(sqlite3.Error):  # a view of a table that no longer exists
                columns = database.execute("SELECT name FROM pragma_table_info(?)", (name,)).fetchmany(50)
            listed.append(f"{shown(name)}({', '.join(shown(column) for (column,) in columns)})")
    except sqlite3.Error:
        return "Its tables cannot be listed."
    return f"There are: {'; '.join(listed)[:3_000]}." if listed else "The database has no tables."
