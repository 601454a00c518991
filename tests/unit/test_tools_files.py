import itertools
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from mulligan import ToolError
from mulligan.tools import list_files, read_file, search_files, write_file
from mulligan.tools.workspace import MAX_PARTS
from tests.support.processes import open_files

SECRET = "the secret"


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text(SECRET)
    return folder


@pytest.fixture
def inside(tmp_path, outside, monkeypatch):
    folder = tmp_path / "workspace"
    (folder / "notes" / "deep").mkdir(parents=True)
    (folder / "notes" / "today.txt").write_text("one\ntwo\nthree\n")
    (folder / "notes" / "deep" / "a.md").write_text("Two birds\n")
    (folder / ".hidden").write_text("two\n")
    (folder / "data.bin").write_bytes(b"\x89PNG\0\0two")
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "out").symlink_to(outside)
    (folder / "notes" / "out").symlink_to("../../outside")
    (folder / "inner").symlink_to("notes")
    (folder / "dangling").symlink_to(outside / "new.txt")
    (folder / "loop").symlink_to("loop")
    (folder / "dev").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.getcwd()
        os.chdir(folder)  # the path of a socket must be short
        bound.bind("socket")
        os.chdir(here)
        monkeypatch.setenv("MULLIGAN_WORKSPACE", str(folder))
        yield folder


def contents(*folders):
    """Every path below the folders with its content, which must not change."""
    found = {}
    for folder in folders:
        for at, names, files in os.walk(folder):
            for name in [*names, *files]:
                path = os.path.join(at, name)
                status = os.lstat(path)
                is_plain = not os.path.islink(path) and os.path.isfile(path)
                found[path] = (status.st_mode, status.st_ino, Path(path).read_bytes() if is_plain else None)
    return found


ESCAPES = [
    "..",
    "../outside/secret.txt",
    "notes/../../outside/secret.txt",
    "notes/../notes/today.txt",
    "./../outside/secret.txt",
    "....//../outside/secret.txt",
    "notes/deep/../../../outside/secret.txt",
    "/etc/passwd",
    "//etc/passwd",
    "/proc/self/root/etc/passwd",
    "C:/Windows/win.ini",
    "C:secret.txt",
    "..\\outside\\secret.txt",
    "notes\\today.txt",
    "\\\\server\\share",
    "link.txt",
    "link.txt/",
    "out/secret.txt",
    "out/../secret.txt",
    "notes/out/secret.txt",
    "inner/today.txt",
    "dangling",
    "dangling/new.txt",
    "loop",
    "loop/x",
    "dev",
    "pipe",
    "pipe/x",
    "socket",
    "notes/today.txt/x",
    "link.txt\0.md",
    "\0",
    "a\nb",
    "a\x1b[2Jb",
    "\ud800",
    "y" * 300,
    "x/" * (MAX_PARTS + 1) + "y",
    "x" * 100_000,
    "notes",
    ".",
    "",
]


@pytest.mark.parametrize("path", ESCAPES, ids=lambda path: ascii(path[:40]))
@pytest.mark.parametrize(
    "use",
    [
        read_file,
        lambda path: write_file(path, "mine"),
        lambda path: write_file(path, "mine", mode="overwrite"),
        lambda path: write_file(path, "mine", mode="append"),
    ],
    ids=["read", "create", "overwrite", "append"],
)
@pytest.mark.timeout(20)
def test_no_path_leads_out_of_the_workspace_or_changes_anything(inside, outside, path, use):
    before = contents(inside, outside)
    with pytest.raises(ToolError) as told:
        use(path)
    assert contents(inside, outside) == before
    assert SECRET not in str(told.value)
    assert str(inside) not in str(told.value)
    assert len(str(told.value)) < 700


@pytest.mark.parametrize(
    "path", [path for path in ESCAPES if path not in ("", ".", "notes")], ids=lambda p: ascii(p[:40])
)
@pytest.mark.parametrize("use", [list_files, lambda path: search_files("secret", path)], ids=["list", "search"])
@pytest.mark.timeout(20)
def test_no_path_lists_or_searches_outside_the_workspace(inside, path, use):
    with pytest.raises(ToolError) as told:
        use(path)
    assert SECRET not in str(told.value)


def test_walking_does_not_follow_links_or_wait_for_pipes(inside):
    assert SECRET not in search_files("secret", include_hidden=True)
    listed = list_files(recursive=True, include_hidden=True)
    assert "secret" not in listed
    assert "out (link, not followed)" in listed
    assert "pipe (special)" in listed


def test_a_link_swapped_in_for_a_folder_never_leads_out(inside, outside):
    (inside / "swap").mkdir()
    (inside / "swap" / "secret.txt").write_text("harmless")
    done = threading.Event()

    def swap():
        for number in itertools.count():
            if done.is_set():
                return
            # A writer may create the folder again in between: then the next iteration moves that one.
            with suppress(OSError):
                os.rename(inside / "swap", inside / f"aside{number}")
                os.symlink(outside, inside / "swap")
                os.unlink(inside / "swap")
                os.rename(inside / f"aside{number}", inside / "swap")

    thread = threading.Thread(target=swap)
    thread.start()
    outcomes = set()
    try:
        for number in range(1_500):
            for use in (
                lambda: read_file("swap/secret.txt"),
                lambda: search_files("secret", "swap") + list_files("swap"),
                lambda number=number: write_file(f"swap/{number % 5}.txt", "mine", mode="overwrite"),
                lambda: write_file("swap/secret.txt", "harmless", mode="overwrite"),
            ):
                try:
                    assert SECRET not in use()
                    outcomes.add("done")
                except ToolError:
                    outcomes.add("told")
    finally:
        done.set()
        thread.join()
    assert outcomes == {"done", "told"}
    assert contents(outside).keys() == {str(outside / "secret.txt")}
    assert (outside / "secret.txt").read_text() == SECRET


def test_a_pipe_swapped_in_for_a_file_is_not_waited_for(inside, monkeypatch):
    real = os.stat

    def seen_as_a_file(path, **options):
        return real("notes/today.txt" if path == "pipe" else path, **options)

    monkeypatch.setattr(os, "stat", seen_as_a_file)
    with pytest.raises(ToolError, match="not a regular file"):
        read_file("pipe")


def test_read_file_returns_a_part_and_says_what_is_left(inside):
    assert read_file("notes/today.txt") == "[notes/today.txt: lines 1 to 3 of 3]\none\ntwo\nthree"
    assert read_file("./notes//today.txt", start_line=2, max_lines=1) == (
        "[notes/today.txt: lines 2 to 2 of 3]\ntwo\n[1 more lines; read on with start_line=3]"
    )
    with pytest.raises(ToolError, match="has no line 4: 3 lines in all"):
        read_file("notes/today.txt", start_line=4)


def test_read_file_bounds_long_lines_and_large_files(inside):
    (inside / "long").write_text("x" * 100_000 + "\nend\n")
    text = read_file("long")
    assert len(text) < 25_000
    assert text.endswith("[line 1 is cut: 76,000 more characters]\n[1 more lines; read on with start_line=2]")
    (inside / "many").write_text("\n".join("y" * 1_000 for _ in range(100)))
    assert read_file("many").endswith("[77 more lines; read on with start_line=24]")
    (inside / "empty").write_text("")
    assert read_file("empty") == "[empty: the file is empty]"
    (inside / "bom").write_bytes(b"\xef\xbb\xbfa\r\nb\xff")
    assert read_file("bom") == "[bom: lines 1 to 2 of 2]\na\nb\ufffd"
    (inside / "utf16").write_bytes("ä".encode("utf-16"))
    assert read_file("utf16").endswith("\nä")
    with pytest.raises(ToolError, match="binary file of 9 bytes"):
        read_file("data.bin")


def test_a_wrong_path_is_answered_with_the_nearest_names(inside):
    with pytest.raises(ToolError, match=r"no 'notes/todya.txt' in the workspace. Nearest: notes/today.txt"):
        read_file("notes/todya.txt")
    with pytest.raises(ToolError, match=r"no 'ntoes' in the workspace. Nearest: notes"):
        read_file("ntoes/today.txt")
    with pytest.raises(ToolError, match=r"The folder 'notes/deep' contains: a.md"):
        read_file("notes/deep/zzz")
    with pytest.raises(ToolError, match=r"is a folder, not a file. List what is in it with list_files"):
        read_file("notes")
    with pytest.raises(ToolError, match=r"'notes/today.txt' is not a folder"):
        list_files("notes/today.txt")


def test_list_files_sorts_and_counts_hidden_entries(inside):
    assert (
        list_files("notes")
        == "[notes: 3 entries]\nnotes/deep/\nnotes/out (link, not followed)\nnotes/today.txt (14 bytes)"
    )
    assert "notes/deep/\nnotes/deep/a.md (10 bytes)\nnotes/out" in list_files("notes", recursive=True)
    assert list_files().endswith("[1 hidden, not listed: use include_hidden]")
    assert ".hidden (4 bytes)" in list_files(include_hidden=True)
    (inside / "notes" / "odd\nname\udcff").touch()
    assert "notes/odd\ufffdname?" in list_files("notes")
    for number in range(600):
        (inside / "notes" / "deep" / f"{number:03}").touch()
    assert list_files("notes/deep").endswith(
        "notes/deep/499 (0 bytes)\n[more than these 500 entries: list one of the folders]"
    )


def test_search_finds_plain_text(inside):
    assert search_files("two") == (
        "[lines found: 1; files searched: 3]\nnotes/today.txt:2: two\n"
        "[1 binary files passed over]\n[1 hidden files or folders not searched: use include_hidden]"
    )
    assert "notes/deep/a.md:1: Two birds\nnotes/today.txt:2: two" in search_files("TWO", "notes", ignore_case=True)
    assert search_files("two", "notes", names="*.md") == "[lines found: 0; files searched: 1]"
    assert search_files("two", ".hidden") == "[lines found: 1; files searched: 1]\n.hidden:1: two"
    assert search_files("(.*", "notes") == "[lines found: 0; files searched: 2]"
    for text in ("a\nb", ""):
        with pytest.raises(ToolError, match="line by line"):
            search_files(text)


def test_search_is_bounded(inside):
    (inside / "big").write_text("needle\n" * 1_000 + "x" * 200_000 + "needle" + "x" * 200_000)
    found = search_files("needle", max_hits=3)
    assert found.count("big:") == 3
    assert "[stopped after 3 hits: there are more]" in found
    (inside / "big").write_text("x" * 200_000 + "needle" + "x" * 200_000)
    assert len(search_files("needle")) < 500


def test_write_file_writes_all_or_nothing(inside):
    assert write_file("new/er/a.txt", "ä\n") == "Wrote 3 bytes to 'new/er/a.txt', a new file."
    assert (inside / "new" / "er" / "a.txt").read_text() == "ä\n"
    with pytest.raises(ToolError, match="exists already"):
        write_file("new/er/a.txt", "b")
    assert write_file("new/er/a.txt", "b", mode="append") == "Added 1 bytes to 'new/er/a.txt', which now has 4."
    assert write_file("new/er/a.txt", "c", mode="overwrite") == "Wrote 1 bytes to 'new/er/a.txt', in place of 4."
    assert write_file("log", "x", mode="append") == "Wrote 1 bytes to 'log', a new file."
    assert os.listdir(inside / "new" / "er") == ["a.txt"]
    with pytest.raises(ToolError, match="lone surrogate"):
        write_file("b.txt", "\ud800")
    with pytest.raises(ToolError, match="grow beyond"):
        write_file("b/c.txt", "x" * 16_000_001)
    assert not (inside / "b").exists()


def test_a_failed_write_leaves_nothing_behind(inside, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = contents(inside)
    for path in ("x/y/z.txt", "notes/today.txt"):
        with pytest.raises(ToolError, match="no space is left"):
            write_file(path, "new", mode="overwrite")
    assert contents(inside) == before


def test_write_file_keeps_the_mode_and_leaves_hard_links_alone(inside, outside):
    os.link(outside / "secret.txt", inside / "hard")
    os.chmod(inside / "hard", 0o640)
    write_file("hard", "mine", mode="append")
    assert (inside / "hard").read_text() == SECRET + "mine"
    assert (inside / "hard").stat().st_mode & 0o777 == 0o640
    assert (outside / "secret.txt").read_text() == SECRET


def test_concurrent_writers_lose_nothing(inside):
    def append(number):
        return write_file("sums/log.txt", f"{number}\n", mode="append")

    def create(number):
        try:
            return write_file("sums/one.txt", f"{number}\n")
        except ToolError:
            return None

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(append, range(100)))
        assert sum(made is not None for made in pool.map(create, range(50))) == 1
    assert sorted(map(int, (inside / "sums" / "log.txt").read_text().split())) == list(range(100))


def test_no_descriptor_stays_open(inside):
    def use_all():
        list_files(recursive=True)
        search_files("two", max_hits=1)
        write_file("a/b/c.txt", "x", mode="overwrite")
        for path in ("pipe", "a/zzz", "link.txt", "notes"):
            with pytest.raises(ToolError):
                read_file(path)

    use_all()
    before = open_files()
    for _ in range(10):
        use_all()
    assert open_files() == before


def test_the_workspace_is_created_by_the_first_write(tmp_path, monkeypatch):
    monkeypatch.delenv("MULLIGAN_WORKSPACE", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ToolError, match="workspace is empty"):
        list_files()
    assert not (tmp_path / "workspace").exists()
    write_file("a.txt", "x")
    assert (tmp_path / "workspace" / "a.txt").read_text() == "x"


def test_a_workspace_that_is_not_a_folder_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MULLIGAN_WORKSPACE", str(tmp_path / "file"))
    for use in (list_files, lambda: write_file("a", "b")):
        with pytest.raises(ToolError, match="MULLIGAN_WORKSPACE names no usable folder"):
            use()
