"""A file whose tests change the environment fails, and the next file does not see the change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.kept_environment import KeptEnvironment

FILES = {
    "conftest.py": f"""
import os
import pytest
from {KeptEnvironment.__module__} import KeptEnvironment
KEPT = KeptEnvironment()

def pytest_configure(config):
    config.pluginmanager.register(KEPT)

@pytest.fixture(scope="session")
def shared():
    KEPT.set_for_session({{"SHARED": "1"}})
""",
    "test_1_leaves.py": """
import os
def test_sets(shared):
    os.environ.update(ADDED="1", CHANGED="2")
    del os.environ["REMOVED"]
""",
    "test_2_keeps.py": """
import os
import pytest
@pytest.fixture(scope="module", autouse=True)
def patched():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHANGED", "3")
        yield
def test_sees_what_was_there(monkeypatch):
    assert "ADDED" not in os.environ
    assert (os.environ["CHANGED"], os.environ["REMOVED"], os.environ["SHARED"]) == ("3", "1", "1")
    monkeypatch.setenv("ADDED", "1")
def test_again():
    assert os.environ["CHANGED"] == "3"
""",
}


def test_variables_that_a_file_leaves_fail_it_and_no_other(tmp_path: Path) -> None:
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", "."],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path.cwd()), "CHANGED": "1", "REMOVED": "1"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "3 passed, 1 error" in ended.stdout, ended.stdout
    assert "test_1_leaves.py leaves environment variables changed: ADDED, CHANGED, REMOVED" in ended.stdout
