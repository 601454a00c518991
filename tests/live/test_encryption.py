"""With keys set, no content is readable in the server's database; everything else works as before."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from mulligan import connect
from mulligan.devserver import temporal_server
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.live.conftest import DONE, Lab, call

SECRET = "sesame-0815"
OLD, NEW = (f"{name}:{base64.b64encode(name.encode() * 32).decode()}" for name in "on")


@pytest.mark.parametrize("keys", ["", f"{NEW},{OLD}"], ids=["open", "encrypted"])
async def test_with_keys_no_content_is_readable_in_the_database(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    """The file and its write-ahead log are searched as bytes for prompts, arguments, results, answers, errors and failures."""
    file = tmp_path / "temporal.db"
    async with temporal_server(db=file) as server:
        monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", keys)
        client = await connect(server.address)
        async with running_worker(client, load(["tests.support.shop_agents"]), lab.telemetry, "agents"):
            at = Lab(client, lab.model, lab.otlp, lab.telemetry)
            said = [call("click", f'{{"selector": "{SECRET}"}}'), call("click", f'{{"s": "{SECRET}"}}'), DONE]
            ran = await at.run(said, prompt=SECRET, metadata={"note": SECRET})
            assert ran.calls[0]["result"]["text"] == f"clicked {SECRET}"
            assert ran.result["recovered_failures"] == 1
            failed = await at.run([call("clik", f'{{"s": "{SECRET}"}}')], agent="strict", prompt=SECRET)
            assert type(failed.error).__name__ == "UnknownToolError"
            assert getattr(failed.error, "raw_arguments", "") == f'{{"s": "{SECRET}"}}'
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("temporal.db*"))
    assert (SECRET.encode() in kept) is not bool(keys)
    assert b"AgentWorkflow" in kept


async def test_a_run_goes_on_when_the_encryption_key_is_rotated(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next worker has the new key first and the old one second."""
    go = tmp_path / "go"
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", OLD)
    one = Lab(await lab.another_client(), lab.model, lab.otlp, lab.telemetry, "rotated")
    handle = await one.start([call("now"), call("wait_for_file"), DONE], metadata={"file": str(go)})
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", f"{NEW},{OLD}")
    client = await lab.another_client()
    two = Lab(client, lab.model, lab.otlp, lab.telemetry, "rotated")
    async with running_worker(client, load(["tests.support.shop_agents"]), lab.telemetry, "rotated"):
        go.touch()
        ran = await two.look(client.get_workflow_handle(handle.id))
    assert [each["result"]["text"] for each in ran.calls] == ["noon", "it is there"]
