import json
import os
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from mulligan import ToolError
from mulligan.activities.tool_running.isolated import ChildProcesses, ProcessDied
from mulligan.activities.tool_running.thread_bounds import TookTooLong
from mulligan.tool import reference_of
from mulligan.tools import query_sqlite
from tests.support.processes import open_files

query_module = sys.modules["mulligan.tools.query_sqlite"]  # `tools.query_sqlite` is the tool


def make(path, *statements):
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


@pytest.fixture
def inside(tmp_path, monkeypatch):
    folder = tmp_path / "workspace"
    (folder / "data").mkdir(parents=True)
    make(
        folder / "data" / "shop.db",
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, total REAL, scan BLOB)",
        "INSERT INTO orders VALUES (1, 'Ada', 12.5, x'00ff'), (2, 'Grace', 9e999, NULL), (3, NULL, 0.1, zeroblob(5000))",
        "CREATE TABLE lines (order_id INTEGER REFERENCES orders (id), what TEXT)",
        "CREATE INDEX by_customer ON orders (customer)",
        "CREATE VIEW totals AS SELECT customer, total FROM orders",
        "CREATE VIEW broken AS SELECT lost FROM nowhere",
    )
    monkeypatch.setenv("MULLIGAN_WORKSPACE", str(folder))
    return folder


def state(folder):
    return {str(path): path.lstat().st_size if path.is_file() else None for path in sorted(folder.rglob("*"))}


def test_a_query_returns_rows_as_json(inside):
    result = query_sqlite("data/shop.db", "SELECT * FROM orders ORDER BY id;")
    assert result == {
        "columns": ["id", "customer", "total", "scan"],
        "rows": [[1, "Ada", 12.5, "<blob, 2 bytes>"], [2, "Grace", "inf", None], [3, None, 0.1, "<blob, 5,000 bytes>"]],
        "more": False,
    }
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize(
    ("sql", "first"),
    [
        ("SELECT count(*) FROM totals", [3]),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT sum(i) FROM n", [15]),
        ("PRAGMA table_info(lines)", [0, "order_id", "INTEGER", 0, None, 0]),
        ("PRAGMA main.foreign_key_list(lines)", [0, 0, "orders", "order_id", "id", "NO ACTION", "NO ACTION", "NONE"]),
        ("SELECT name FROM pragma_table_list WHERE name = 'lines'", ["lines"]),
        ("SELECT value FROM json_each('[7]')", [7]),
        ("VALUES (1)", [1]),
        ("/* why */ SELECT 1 -- so", [1]),
    ],
)
def test_every_usual_form_of_reading_statement_is_permitted(inside, sql, first):
    assert query_sqlite("data/shop.db", sql)["rows"][0] == first


def test_a_query_can_be_explained(inside):
    assert query_sqlite("data/shop.db", "EXPLAIN QUERY PLAN SELECT * FROM orders")["columns"][-1] == "detail"


def test_full_text_search_tables_can_be_queried(inside):
    make(inside / "fts.db", "CREATE VIRTUAL TABLE notes USING fts5(body)", "INSERT INTO notes VALUES ('two birds')")
    assert query_sqlite("fts.db", "SELECT body FROM notes WHERE notes MATCH 'birds'")["rows"] == [["two birds"]]


FORBIDDEN = [
    "INSERT INTO orders (id) VALUES (9)",
    "UPDATE orders SET total = 0",
    "UPDATE sqlite_master SET sql = 'x'",
    "UPDATE sqlite_schema SET sql = 'x'",
    "DELETE FROM orders",
    "REPLACE INTO orders (id) VALUES (1)",
    "WITH x AS (SELECT 1) DELETE FROM orders",
    "INSERT INTO orders (id) VALUES (9) RETURNING id",
    "EXPLAIN DELETE FROM orders",
    "CREATE TABLE t (a)",
    "CREATE TEMP TABLE t (a)",
    "CREATE TABLE t AS SELECT 1",
    "CREATE TEMP VIEW v AS SELECT 1",
    "CREATE INDEX i ON orders (total)",
    "CREATE TRIGGER t AFTER INSERT ON orders BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE t USING fts5(a)",
    "DROP TABLE orders",
    "DROP VIEW totals",
    "ALTER TABLE orders RENAME TO o",
    "ATTACH DATABASE '{outside}/secret.db' AS o",
    "ATTACH DATABASE '{outside}/new.db' AS o",
    "DETACH DATABASE main",
    "VACUUM",
    "VACUUM INTO '{outside}/new.db'",
    "REINDEX",
    "ANALYZE",
    "BEGIN",
    "COMMIT",
    "SAVEPOINT s",
    "PRAGMA database_list",
    "SELECT file FROM pragma_database_list",
    "PRAGMA query_only = OFF",
    "PRAGMA trusted_schema = ON",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA writable_schema = ON",
    "PRAGMA temp_store_directory = '{outside}'",
    "PRAGMA hard_heap_limit = 1",
    "PRAGMA user_version = 7",
    "SELECT load_extension('{outside}/evil.so')",
    "SELECT fts3_tokenizer('simple')",
]


@pytest.mark.parametrize("sql", FORBIDDEN)
def test_statements_other_than_reading_are_denied_and_change_nothing(inside, tmp_path, sql):
    outside = tmp_path / "outside"
    outside.mkdir()
    make(outside / "secret.db", "CREATE TABLE secret (a)")
    before = state(tmp_path)
    bytes_before = (inside / "data" / "shop.db").read_bytes()
    with pytest.raises(ToolError, match=r"Only reading is permitted|SQLite says"):
        query_sqlite("data/shop.db", sql.format(outside=outside))
    assert state(tmp_path) == before
    assert (inside / "data" / "shop.db").read_bytes() == bytes_before


def authorized(action, first=None, second=None):
    return query_module._authorize(action, first, second, "main", None) == sqlite3.SQLITE_OK


def test_only_the_schema_table_may_be_updated_by_a_virtual_table():
    assert authorized(sqlite3.SQLITE_UPDATE, "sqlite_master", "sql")
    assert not authorized(sqlite3.SQLITE_UPDATE, "orders", "total")


@pytest.mark.parametrize("name", ["writefile", "readfile", "edit", "LOAD_EXTENSION", "fts3_tokenizer"])
def test_dangerous_functions_of_other_sqlite_builds_are_denied(name):
    assert not authorized(sqlite3.SQLITE_FUNCTION, None, name)
    assert authorized(sqlite3.SQLITE_FUNCTION, None, "upper")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("", "query is empty"),
        (" ;\n", "query is empty"),
        ("-- nothing", "contains no statement"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELECT 1; DROP TABLE orders", "one statement"),
        ("SELEC 1", 'near "SELEC": syntax error'),
        ("SELECT 'a\0b'", "SQLite says"),
        ("SELECT '\ud800'", "SQLite says"),
        ("SELECT ?", "SQLite says"),
        ("SELECT * FROM broken", r"no such table: main.nowhere"),
        ("SELECT zeroblob(5000000)", "length"),
        ("SELECT 1" + "+1" * 150, "depth"),
        ("SELECT 'a' LIKE '" + "%a" * 100 + "'", "too complex"),
        (" UNION ".join(["SELECT 1"] * 60), "too many terms"),
    ],
)
def test_the_error_of_a_query_says_what_is_wrong_without_paths(inside, sql, said):
    with pytest.raises(ToolError, match=said) as told:
        query_sqlite("data/shop.db", sql)
    assert str(inside) not in str(told.value)
    assert "mulligan-" not in str(told.value)


@pytest.mark.parametrize("sql", ["SELECT * FROM order_s", "SELECT name FROM orders"])
def test_an_unknown_table_or_column_is_answered_with_the_schema(inside, sql):
    with pytest.raises(ToolError) as told:
        query_sqlite("data/shop.db", sql)
    assert "no such" in str(told.value)
    assert "orders(id, customer, total, scan); lines(order_id, what); totals(customer, total); broken()" in str(
        told.value
    )


def test_a_database_without_tables_is_reported(inside):
    make(inside / "none.db", "CREATE TABLE t (a)", "DROP TABLE t")
    with pytest.raises(ToolError, match="has no tables"):
        query_sqlite("none.db", "SELECT * FROM t")


def test_an_endless_query_is_stopped_at_its_time_limit(inside, monkeypatch):
    monkeypatch.setattr(query_module, "QUERY_WITHIN", 0.2)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with pytest.raises(ToolError, match=r"stopped after 0.2 seconds"):
        query_sqlite("data/shop.db", endless)


NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT {} FROM n"


def test_the_number_of_rows_is_limited(inside):
    exact = query_sqlite("data/shop.db", NUMBERS.format(5, "i"), limit=5)
    assert (len(exact["rows"]), exact["more"]) == (5, False)
    less = query_sqlite("data/shop.db", NUMBERS.format(5, "i"), limit=4)
    assert (less["rows"], less["more"]) == ([[1], [2], [3], [4]], True)
    assert len(query_sqlite("data/shop.db", NUMBERS.format(500, "i"))["rows"]) == 100
    schema = query_sqlite.schema["properties"]["limit"]
    assert (schema["minimum"], schema["maximum"]) == (1, 1_000)


def test_the_length_of_texts_is_limited(inside):
    cut = query_sqlite("data/shop.db", "SELECT printf('%.*c', 10000, 'x')")["rows"][0][0]
    assert cut == "x" * 2_000 + "… <8,000 more characters>"
    many = query_sqlite("data/shop.db", NUMBERS.format(100, "printf('%.*c', 1500, 'x')"))
    assert many["more"]
    assert 20_000 < len(json.dumps(many)) < 25_000
    wide = query_sqlite("data/shop.db", "SELECT " + ", ".join(["printf('%.*c', 5000, 'x')"] * 100))
    assert len(wide["rows"]) == 1
    assert len(json.dumps(wide)) < 40_000


def test_text_that_is_not_utf8_is_returned_with_replacements(inside):
    assert query_sqlite("data/shop.db", "SELECT CAST(x'61ff' AS TEXT)")["rows"] == [["a\ufffd"]]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.db", b"", "is not a SQLite database: the file is empty"),
        ("text.db", b"id,name\n1,Ada\n", "is not a SQLite database"),
        (
            "damaged.db",
            b"SQLite format 3\0" + b"\x10\0\x01\x01\0\x40\x20\x20" + b"\xff" * 5_000,
            "cannot be read|no database",
        ),
    ],
)
def test_a_file_that_is_not_a_database_is_reported(inside, name, content, said):
    (inside / name).write_bytes(content)
    with pytest.raises(ToolError, match=said):
        query_sqlite(name, "SELECT * FROM sqlite_schema")


def test_a_database_that_is_too_large_is_not_copied(inside, monkeypatch):
    monkeypatch.setattr(query_module, "MAX_FILE_BYTES", 1_000)
    with pytest.raises(ToolError, match="at most 1,000 can be queried"):
        query_sqlite("data/shop.db", "SELECT 1")


@pytest.fixture
def outside(tmp_path, inside):
    folder = tmp_path / "outside"
    folder.mkdir()
    make(folder / "secret.db", "CREATE TABLE secret (a)", "INSERT INTO secret VALUES ('the secret')")
    (inside / "link.db").symlink_to(folder / "secret.db")
    (inside / "out").symlink_to(folder)
    os.mkfifo(inside / "pipe")
    return folder


@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret.db",
        "data/../../outside/secret.db",
        "{outside}/secret.db",
        "file:{outside}/secret.db",
        "link.db",
        "out/secret.db",
        "pipe",
        "data",
        ".",
        "",
        ":memory:",
        "data/shop.db?mode=rwc",
        "data/shop.db\0",
        "missing.db",
    ],
)
def test_no_path_leads_out_of_the_workspace(inside, outside, tmp_path, path):
    before = state(tmp_path)
    with pytest.raises(ToolError) as told:
        query_sqlite(path.format(outside=outside), "SELECT * FROM secret")
    assert "the secret" not in str(told.value)
    assert "no such table" not in str(told.value)
    assert state(tmp_path) == before


def test_file_names_with_url_characters_can_be_queried(inside):
    for name in ("a?mode=rwc&b#c%41.db", "ü 'x'.db"):
        make(inside / "plain.db", "CREATE TABLE IF NOT EXISTS t (a)")
        (inside / "plain.db").rename(inside / name)
        assert query_sqlite(name, "SELECT count(*) FROM t")["rows"] == [[0]]


def test_a_journal_or_log_that_is_a_link_is_not_followed(inside, outside):
    make(inside / "wal.db", "PRAGMA journal_mode = WAL", "CREATE TABLE t (a)")
    (inside / "wal.db-wal").symlink_to(outside / "secret.db")
    (inside / "wal.db-journal").symlink_to(outside / "secret.db")
    assert query_sqlite("wal.db", "SELECT count(*) FROM t")["rows"] == [[0]]


def test_a_write_ahead_log_is_read_and_left_alone(inside):
    with closing(sqlite3.connect(inside / "wal.db")) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE t (a)")
        writer.execute("INSERT INTO t VALUES (1)")
        writer.commit()
        assert (inside / "wal.db-wal").stat().st_size > 0
        before = state(inside)
        for path in (inside / "wal.db", inside / "wal.db-wal", inside / "wal.db-shm"):
            path.chmod(0o444)
        assert query_sqlite("wal.db", "SELECT a FROM t")["rows"] == [[1]]
        assert state(inside) == before
        writer.execute("INSERT INTO t VALUES (2)")
        writer.commit()
        assert query_sqlite("wal.db", "SELECT count(*) FROM t")["rows"] == [[2]]


def test_a_database_with_an_unfinished_transaction_is_not_read(inside, monkeypatch):
    monkeypatch.setattr(query_module.time, "sleep", lambda _: None)
    journal = inside / "data" / "shop.db-journal"
    journal.write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(1_000))
    with pytest.raises(ToolError, match="is being written to"):
        query_sqlite("data/shop.db", "SELECT 1")
    journal.write_bytes(bytes(1_000))  # the file that `journal_mode = PERSIST` leaves
    assert query_sqlite("data/shop.db", "SELECT 1")["rows"] == [[1]]


def test_a_database_written_during_its_copy_is_copied_again(inside, monkeypatch):
    monkeypatch.setattr(query_module.time, "sleep", lambda _: None)
    real, copies = query_module._copy, []

    def copy_while_writing(folder, place, target):
        real(folder, place, target)
        copies.append(target)
        if len(copies) < 3:
            make(inside / "data" / "shop.db", f"INSERT INTO lines VALUES ({len(copies)}, printf('%.*c', 9000, 'x'))")

    monkeypatch.setattr(query_module, "_copy", copy_while_writing)
    assert query_sqlite("data/shop.db", "SELECT count(*) FROM lines")["rows"] == [[2]]
    assert len(copies) == 3


def test_no_temporary_files_are_left(inside, tmp_path, monkeypatch):
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr(query_module.tempfile, "tempdir", str(private))

    def use():
        query_sqlite("data/shop.db", "SELECT * FROM orders", limit=1)
        for path, sql in (("data/shop.db", "SELEC"), ("missing.db", "SELECT 1")):
            with pytest.raises(ToolError):
                query_sqlite(path, sql)

    use()
    before = open_files()
    use()
    assert open_files() == before
    assert list(Path(private).iterdir()) == []


HOSTILE = {  # the failure, the limit in seconds, the SQL
    "memory": (
        ProcessDied,
        20,
        "WITH a AS MATERIALIZED (SELECT hex(zeroblob(1990000)) AS x) SELECT " + ",".join(["x"] * 190) + " FROM a",
    ),
    "time in one function": (
        TookTooLong,
        1,
        "SELECT instr(hex(zeroblob(1900000)), hex(zeroblob(950000)) || '1')",
    ),
    # The limit on memory ends it: a sort in a temporary file would fill the disk until the time limit.
    "sorting": (
        ProcessDied,
        20,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT randomblob(9999) AS r FROM n ORDER BY r",
    ),
}


@pytest.mark.parametrize(("expected", "limit", "sql"), HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_hostile_query_is_ended_by_the_limits_of_its_process(
    inside, expected, limit, sql, tmp_path_factory, monkeypatch
):
    """The query's copy of the database is removed then, too."""
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    children = ChildProcesses(most=1, memory_bytes=300_000_000)
    try:
        with pytest.raises(expected):
            await children.run(reference_of(query_sqlite.function) or "", ("data/shop.db", sql, 10), limit=limit)
        assert [file for file in temporary.rglob("*") if file.is_file()] == []
    finally:
        await children.close()


def test_queries_run_in_a_child_process() -> None:
    """The limits of the next tests are those of the child."""
    assert query_sqlite.isolated


def test_a_query_for_very_many_columns_is_refused(inside):
    with pytest.raises(ToolError, match="too many columns"):
        query_sqlite("data/shop.db", "SELECT " + ",".join(["1"] * 400))
