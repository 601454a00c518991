"""Images, files and audio of a real MCP server's result, as each provider's strict server receives them."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path

import pytest

from mulligan import Agent, McpServer
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.support import mcp_gallery
from tests.support.content_files import PDF, WAV
from tests.support.lab import DONE, Lab, call
from tests.support.mcp_gallery import EMBEDDED, PICTURE, encoded

DESCRIBED = {
    "openai": ["audio (audio/wav, 44 bytes)"],
    "openai-chat": [],
    "anthropic": ["audio (audio/wav, 44 bytes)"],
    "google": [],
}
"""What a provider does not take. All others get the bytes."""


async def test_blocks_of_an_mcp_result_reach_each_provider_as_what_they_are(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """History and steps have references; what a provider does not take, and bytes of no image, are described in text."""
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path))
    for name, value in lab.model.environment().items():
        monkeypatch.setenv(name, value)
    gallery = McpServer("gallery", command=[sys.executable, str(Path(mcp_gallery.__file__))], timeout=60)
    agent = Agent(name="guide", model="openai:nobody", mcp=[gallery])
    queue, client = f"gallery-{uuid.uuid4().hex[:6]}", await lab.another_client()
    async with running_worker(client, load_agents([agent], []), lab.telemetry, queue):
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, queue)
        runs = {
            api: await at.run([call("gallery__show"), DONE], agent="guide", api=api)  # refusals are asserted there
            for api in DESCRIBED
        }
    names = {"audio (audio/wav, 44 bytes)": WAV}
    for api, ran in runs.items():
        assert ran.result["status"] == "completed", api
        body = json.dumps(ran.requests[1].json, ensure_ascii=False)
        sent = {"picture": PICTURE, "pdf": PDF, "embedded": EMBEDDED, "audio": WAV}
        described = {label for label in names if f"[{label}: it cannot be shown to this model]" in body}
        assert described == set(DESCRIBED[api]), api
        missing = {what for what, data in sent.items() if encoded(data) not in body}
        assert missing == ({"audio"} if described else set()), api
        for text in ("The gallery:", "By Ada.", "[https://art.test/more]", "[image/png, 15 bytes]", "not of the type"):
            assert text in body, (api, text)
        [step] = [each for each in ran.steps if each["tool_calls"]]
        content = step["tool_calls"][0]["result"]["content"]
        assert [part["type"] for part in content] == ["text", "image", "file", "image", "audio", *["text"] * 4]
        assert [part.get("name") for part in content[1:5]] == [None, "catalogue.pdf", "photo.png", None]
        assert all(part["ref"].startswith("sha256:") for part in content[1:5])
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2  # the two large images, once for all runs
