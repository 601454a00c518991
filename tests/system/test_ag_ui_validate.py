"""The streams of `/ag-ui` by `ag-ui-validate`, an outside validator of the protocol: no errors and no warnings."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mulligan.serve import turn_stream
from tests.support.door_streams import DOORS
from tests.support.event_logs import LOGS
from tests.support.expected_failures import check_failures
from tests.support.own_environment import own_environment

VERSION = "0.4.0"
"""Of ag-ui-validate on PyPI (MIT)."""
PROGRAM = """
import json, sys
from ag_ui_validate.pytest_plugin import validate_agui
found = {name: [each for stream in streams for each in validate_agui(stream).diagnostics]
         for name, streams in json.load(sys.stdin).items()}
told = {name: [[each.rule, each.message] for each in of if each.severity != "info"] for name, of in found.items()}
print(json.dumps(told))
"""
"""In an environment of its own: where it is installed, it is a plugin of pytest."""


def _streams(frames: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The frames of each request."""
    starts = [place for place, frame in enumerate(frames) if frame["type"] == "RUN_STARTED"]
    return [frames[start:end] for start, end in zip(starts, [*starts[1:], len(frames)], strict=True)]


async def test_the_stream_of_each_request_is_valid_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of an answer to an interrupt too, whose call another stream has begun."""
    monkeypatch.setattr(turn_stream, "QUIET_SECONDS", 0.01)
    sent = {name: _streams(await DOORS["ag_ui"](make())) for name, make in LOGS.items()}
    python = await own_environment("ag-ui-validate", VERSION, f"ag-ui-validate=={VERSION}") / "bin/python"
    process = await asyncio.create_subprocess_exec(
        str(python), "-c", PROGRAM,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate(json.dumps(sent).encode())
    assert process.returncode == 0, errors.decode()
    told = json.loads(out)
    failed = {f"{name} {rule}" for name, found in told.items() for rule, _ in found}
    check_failures("ag_ui_validate", "streams", failed, [name for name, found in told.items() if not found])
