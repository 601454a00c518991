"""LiteLLM's proxy, a real gateway, in an environment of its own and in front of a server of the tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from tests.support.own_environment import own_environment
from tests.support.ports import free_ports

VERSION = "1.106.2"
"""Of litellm on PyPI (MIT). It has 600 MB with what its proxy needs: so it is installed once a machine."""
KEY = "sk-mulligan-tests-4f1c9a7e2b5d8036a1c4e7f9"
"""Of the proxy: it does not start with a short one."""
CONFIG = """
model_list:
  - model_name: claude-sonnet-4-5
    litellm_params: {model: anthropic/claude-sonnet-4-5, api_base: os.environ/UPSTREAM_ROOT, api_key: test-key}
  - model_name: gemini-3-pro-preview
    litellm_params: {model: gemini/gemini-3-pro-preview, api_base: os.environ/UPSTREAM_V1BETA, api_key: test-key}
  - model_name: bedrock-claude
    litellm_params:
      model: bedrock/converse/anthropic.claude-sonnet-4-5-20250929-v1:0
      aws_bedrock_runtime_endpoint: os.environ/UPSTREAM_ROOT
      aws_region_name: us-east-1
      aws_access_key_id: test
      aws_secret_access_key: test-key
  - model_name: "*"
    litellm_params: {model: openai/*, api_base: os.environ/UPSTREAM, api_key: test-key}
litellm_settings: {num_retries: 0, telemetry: false}
router_settings: {disable_cooldowns: true, num_retries: 0}
"""
SECONDS = 120
"""Until it answers: it imports many packages."""


async def install() -> Path:
    """The folder of the environment with the proxy; it is made unless it exists."""
    return await own_environment("litellm", VERSION, f"litellm[proxy]=={VERSION}")


@asynccontextmanager
async def litellm_proxy(upstream: str, folder: Path) -> AsyncIterator[str]:
    """The base URL of a proxy whose models are those of a server: three of Anthropic's, Google's and Amazon's APIs, and all
    others of OpenAI's.

    Args:
        upstream: The server's base URL, of OpenAI's API.
        folder: A new folder for its configuration and its log.
    """
    installed = await install()
    config = folder / "litellm.yaml"
    config.write_text(CONFIG)
    [port] = free_ports(1)
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= {
        "UPSTREAM": upstream,
        "UPSTREAM_ROOT": upstream.removesuffix("/v1"),
        "UPSTREAM_V1BETA": f"{upstream}beta",
        "LITELLM_MASTER_KEY": KEY,
        "NO_DOCS": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "true",
    }
    with (folder / "litellm.log").open("wb") as log:
        command = [
            str(installed / "bin/python"),
            str(installed / "bin/litellm"),
            "--config",
            str(config),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        process = await asyncio.create_subprocess_exec(*command, env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        await _until_ready(f"http://127.0.0.1:{port}/health/liveliness", process, folder / "litellm.log")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _until_ready(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(SECONDS), httpx2.AsyncClient() as client:
        while process.returncode is None:
            try:
                if (await client.get(url)).status_code == 200:
                    return
            except httpx2.HTTPError:
                pass
            await asyncio.sleep(0.2)
    raise RuntimeError(f"litellm ended with {process.returncode}: {log.read_text()[-2000:]}")
