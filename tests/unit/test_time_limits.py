"""Tests that hang after they have failed are ended as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.time_limits import TimeLimits

LIMIT, PATIENCE = 2, 60
HANGS_AFTERWARDS = """
    import time, pytest
    @pytest.fixture
    def slow():
        yield
        time.sleep(600)
    def test_it(slow):
        assert False
"""
PLUGIN = f"""
    from {TimeLimits.__module__} import TimeLimits
    def pytest_configure(config):
        config.pluginmanager.register(TimeLimits())
"""


def test_a_test_that_hangs_after_a_failure_is_ended(tmp_path: Path) -> None:
    for name, code in (("test_hangs.py", HANGS_AFTERWARDS), ("conftest.py", PLUGIN)):
        (tmp_path / name).write_text("\n".join(line.removeprefix("    ") for line in code.splitlines()))
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--timeout", f"{LIMIT}", "test_hangs.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path.cwd())}, capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    assert f"Timeout (>{LIMIT}.0s)" in ended.stdout
    assert "1 failed, 1 error" in ended.stdout
