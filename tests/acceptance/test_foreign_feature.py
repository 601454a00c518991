"""A third party's feature from outside of the tree: its option, wait, command, page and span are where Mulligan's own are."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from mulligan.devserver import DevServer
from tests.acceptance.test_own_feature import end, worker
from tests.support.command_fixtures import ROOT, Run, command
from tests.support.command_server import PIPE, start_command
from tests.support.otlp_receiver import OTLPReceiver
from tests.support.ports import free_port
from tests.support.temporal import connect_to

MODULES = ("quiet_hours", "quiet_hours.agents")


@pytest.fixture
def outside(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The environment of commands beside which the package stands."""
    shutil.copytree(ROOT / "tests/support/quiet_hours", tmp_path / "quiet_hours")
    return environment | {"MULLIGAN_TASK_QUEUE": tmp_path.name, "PYTHONPATH": "", "MULLIGAN_LOAD": ",".join(MODULES)}
