"""Open WebUI in front of `/v1`, as docs/clients.md says. It has 6.8 GB, so CI does not run it:

uv run --group system pytest -n 0 tests/system/open_webui.py
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from mulligan.serve.openai_api.side_requests import SETTING
from tests.support.clients_page import block, serving
from tests.support.front_end_agents import ANSWER, TOKEN
from tests.support.http_server import http_server
from tests.support.lab import Lab
from tests.support.ports import free_ports
from tests.system.test_clients_page import QUESTION, Page, queue, until_serves

__all__ = ["queue"]

SECONDS_FOR_MORE = 15
"""How long more runs are waited for after the answer."""
COMMAND = "uv run -q --no-project --python 3.11 --with open-webui==0.12.4 open-webui serve"


RUNS = {"off": ["support"], "on": ["support"] * 4, "described": ["support", *["titles"] * 3]}


@pytest.mark.parametrize("how", RUNS)
async def test_a_question_in_open_webui(
    lab: Lab, queue: str, tmp_path: Path, chromium: Browser, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its side requests are turned off; they are the agent's; they are another agent's."""
    if how == "described":
        file = tmp_path / "side.toml"
        file.write_text(block("Side requests", "toml", "").replace('model = "openai:gpt-5-nano"', 'agent = "titles"'))
        monkeypatch.setenv(SETTING, str(file))
    [port] = free_ports(1)
    async with http_server(lab.client, task_queue=queue, tokens=f"ada-{how}:{TOKEN}") as door:
        page = Page(door.url, tmp_path, door.http)
        line = block("Open WebUI", "sh", page.url).replace("open-webui serve", f"{COMMAND} --port {port}")
        if how != "off":
            line = line.replace("_GENERATION=False", "_GENERATION=True")
        offline = {"OFFLINE_MODE": "True", "HF_HUB_OFFLINE": "1", "DATA_DIR": str(tmp_path)}
        async with serving(["sh", "-c", line], tmp_path, **offline, WEBUI_SECRET_KEY="secret-of-this-test-only-7c1e"):
            await until_serves(f"http://127.0.0.1:{port}")
            shown = await chromium.new_page()
            shown.set_default_timeout(60_000)
            await shown.goto(f"http://127.0.0.1:{port}/?models=support")
            await shown.get_by_text("Okay, Let's Go!").click()
            await shown.locator("#chat-input").fill(QUESTION)
            await shown.keyboard.press("Enter")
            await expect(shown.get_by_text(ANSWER).first).to_be_visible(timeout=60_000)
            await asyncio.sleep(SECONDS_FOR_MORE)
        assert sorted(await page.agents()) == RUNS[how]
