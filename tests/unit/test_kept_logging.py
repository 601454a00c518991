"""What a worker of one file of tests does to the SDK's loggers is taken back before the next file; of several, the strictest counts."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError

from mulligan.worker.logs import shorten_failures

ROOT = Path(__file__).parents[2]
SETS = """
from mulligan.worker.logs import shorten_failures

def test_a_worker_with_encryption():
    shorten_failures(frozenset({"call_model"}), is_encrypted=True)
"""
READS = """
import logging

def test_another_file(caplog):
    assert logging.getLogger("temporalio.activity").filters == []
"""
PLUGIN = "from tests.support.kept_logging import KeptLogging\n\ndef pytest_configure(config):\n    config.pluginmanager.register(KeptLogging())\n"


@pytest.mark.parametrize("keeps", [True, False])
def test_the_filters_of_a_file_are_gone_in_the_next_one(tmp_path: Path, keeps: bool) -> None:
    (tmp_path / "conftest.py").write_text(PLUGIN if keeps else "")
    (tmp_path / "test_a.py").write_text(SETS)
    (tmp_path / "test_b.py").write_text(READS)
    options = ("-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path))
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ("2 passed" if keeps else "1 failed, 1 passed") in ran.stdout, ran.stdout


@pytest.fixture
def sdk_log() -> Iterator[logging.Logger]:
    log = logging.getLogger("temporalio.activity")
    before = [*log.filters]
    log.filters[:] = []
    yield log
    log.filters[:] = before


@pytest.mark.parametrize("workers", [(False, True), (True, False), (True, True)])
def test_one_worker_with_encryption_is_enough_for_no_texts(
    sdk_log: logging.Logger, caplog: pytest.LogCaptureFixture, workers: tuple[bool, ...]
) -> None:
    """Two workers of one process: what one of them must not write, the other does not write for it."""
    for is_encrypted in workers:
        shorten_failures(frozenset({"call_model"}), is_encrypted=is_encrypted)
    details = {"temporal_activity": {"activity_type": "call_model", "workflow_id": "w"}}
    try:
        raise ApplicationError("the prompt", type="ModelUnavailableError")
    except ApplicationError:
        sdk_log.warning("Completing activity as failed", exc_info=True, extra=details)
    assert caplog.messages == ["call_model of w: ModelUnavailableError"]


def test_without_encryption_the_line_has_the_text(sdk_log: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    shorten_failures(frozenset({"call_model"}), is_encrypted=False)
    details = {"temporal_activity": {"activity_type": "call_model", "workflow_id": "w"}}
    try:
        raise ApplicationError("the endpoint is down", type="ModelUnavailableError")
    except ApplicationError:
        sdk_log.warning("Completing activity as failed", exc_info=True, extra=details)
    assert caplog.messages == ["call_model of w: ModelUnavailableError: the endpoint is down"]
