"""`mulligan serve` with the unmodified LiteLLM SDK, through which many chat front ends and gateways call models."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from pathlib import Path

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import http_server
from tests.support.lab import Lab
from tests.support.litellm_proxy import install
from tests.support.openai_door_agents import MODEL, SCRIPTS, scripted

SCRIPT = Path(__file__).with_name("litellm_client.py").absolute()


async def test_litellms_sdk_talks_to_agents(lab: Lab, tmp_path: Path) -> None:
    """Chat completions and responses, whole and as streams, and an agent that does not exist."""
    python = await install() / "bin/python"
    queue = f"litellm-{uuid.uuid4().hex[:6]}"
    lab.model.script(MODEL, scripted(SCRIPTS))
    worker = running_worker(lab.client, load(["tests.support.openai_door_agents"]), lab.telemetry, queue)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "true"}
    async with worker, http_server(lab.client, task_queue=queue, tokens="ada:token-of-ada") as door:
        process = await asyncio.create_subprocess_exec(
            str(python), str(SCRIPT), door.url,
            cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-3_000:]
    got = json.loads(out.decode().splitlines()[-1])
    assert got["chat"] == ["It is order 7.", "stop", 30]
    assert got["streamed"] == "Let me look.\n\nIt is order 7."
    assert got["response"] == ["completed", ["message", "mcp_call", "mcp_call", "message"]]
    assert (got["types"][0], got["types"][-1]) == ("response.created", "response.completed")
    assert "response.output_text.delta" in got["types"]
    assert got["refused"] == [404, True]
