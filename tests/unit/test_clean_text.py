"""Texts for clients do not name folders of the machine, and logs no token of a callback."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mulligan
from mulligan.serve.clean_text import _folders, logged_path, without_folders
from mulligan.serve.problems import Problem

FOLDERS = [
    Path(sys.prefix), Path(mulligan.__file__).parent, Path(json.__file__).parent, Path(tempfile.gettempdir()), Path.home(), Path.cwd(),
]  # fmt: skip
PIECES = st.sampled_from(
    [" ", "'", "/", "…", ":", "api/runs", "/api/runs/{id}", "/v1/models", "https://example.com/a", "x.txt"]
)


@pytest.fixture
def content_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the settings, which the cached pattern does not have yet."""
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path))
    monkeypatch.setenv("MULLIGAN_EXTERNAL_STORAGE", (tmp_path / "a b").as_uri())
    _folders.cache_clear()
    yield tmp_path
    _folders.cache_clear()


def test_no_answer_names_a_folder_of_the_server(content_dir: Path) -> None:
    for folder in (*FOLDERS, content_dir, content_dir / "a b"):
        error = PermissionError(13, "Permission denied", str(folder / "orders.csv"))
        detail = Problem(422, "invalid_input", f"It cannot be used: {error}.").detail
        assert str(folder) not in detail
        assert detail.endswith("orders.csv'.")


@given(st.lists(PIECES | st.sampled_from([str(folder) for folder in FOLDERS]), max_size=8).map("".join))
def test_whatever_stands_around_a_folder_it_is_left_out(text: str) -> None:
    cleaned = without_folders(text)
    words = cleaned.replace("'", " ").replace(":", " ").split()
    assert not [word for word in words for folder in FOLDERS if word == str(folder) or word.startswith(f"{folder}/")]


@pytest.mark.parametrize(
    "text", ["GET /api/runs lists the runs.", "There is nothing at /foo/tmp/x.", "/tmpfs is no folder of ours", "a/b", "https://a/tmp2"]
)  # fmt: skip
def test_other_paths_are_left_as_they_are(text: str) -> None:
    assert without_folders(text) == text


def test_a_path_in_the_log_has_no_token_of_a_callback() -> None:
    for path in (
        "/api/callbacks/TOKEN",
        "/mounted/api/callbacks/TOKEN?a=1",
        "/api/callbacks/a/TOKEN",
        "/api/callbacks//TOKEN=",
    ):
        assert "TOKEN" not in logged_path(path)
    assert logged_path("/api/runs/run-1/callbacks") == "/api/runs/run-1/callbacks"
