"""The storage for large payloads does not take the result of a tool: the model is told so, and not that a worker died."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from mulligan import connect
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab, call


async def test_a_result_that_the_storage_does_not_take_is_told_as_such(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "storage"
    folder.mkdir()
    monkeypatch.setenv("MULLIGAN_EXTERNAL_STORAGE", folder.as_uri())
    client = await connect(lab.client.service_client.config.target_host)
    queue = f"stored-{uuid.uuid4().hex[:6]}"
    async with running_worker(client, load(["tests.support.large_payload_agent"]), lab.telemetry, queue):
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, queue)
        shutil.rmtree(folder)
        folder.write_text("a file in the place of the folder")
        ran = await at.run([call("give_noise", '{"size": 1300000}'), DONE], agent="large")
    assert (ran.result["status"], ran.result["recovered_failures"]) == ("completed", 1)
    [told] = ran.calls
    assert told["result"]["error"]["kind"] == "tool_lost"
    assert "was lost: its worker has no result to send (StorageError: " in told["result"]["text"]
    assert "died" not in told["result"]["text"]
