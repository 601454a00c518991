"""`/api/openapi.json` of a real server: valid for OpenAPI's validator, and Schemathesis finds that it says what is true."""

from __future__ import annotations

import asyncio
import json
import os
import re
import uuid
from pathlib import Path

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import http_server
from tests.support.lab import Lab
from tests.support.own_environment import own_environment

ROOT = Path(__file__).parents[2]
SCHEMATHESIS, VALIDATOR = "4.32.5", "0.9.0"
"""Versions on PyPI (MIT; Apache-2.0)."""
EXAMPLES = int(os.environ.get("OPENAPI_EXAMPLES", "3"))
"""Random ones for each operation, beside those that cover each field with and without a fault."""
SECONDS_TO_ANSWER = 120
"""Schemathesis takes a late answer for a failure. What is tested is what is answered: beside other tests that can take long."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "ignored_auth",
)
NEW_RUN = "/api/runs"
PARTS = (
    ["--exclude-method", "GET", "--include-path", NEW_RUN],
    ["--include-method", "GET"],
    ["--exclude-method", "GET", "--exclude-path", NEW_RUN],
)
"""A process for each part: threads of one (`--workers`) make CPython 3.11 fail ("AST constructor recursion depth mismatch").
Nearly half of the requests that are not GET have the largest body."""
CONFIG = """
[parameters]
"path.id" = "{run_id}"
agent = "support"
wait = 0

[phases.coverage]
unexpected-methods = []
"""


async def _run(folder: Path, *command: str | Path) -> tuple[int | None, str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    told, _ = await process.communicate()
    return process.returncode, told.decode()


def failures_of(told: str) -> str:
    """The parts of Schemathesis' output that name failures and errors, short enough for a log that is cut."""
    start = re.search(r"^=+ (FAILURES|ERRORS) =+$", told, re.MULTILINE)
    return told[start.start() :][:4_000] if start else told[-4_000:]


async def test_the_document_is_valid_and_says_what_the_server_does(lab: Lab, tmp_path: Path) -> None:
    """No request that Schemathesis derives from it is answered with 500, or with anything that it does not say. The agents
    name no file of the server.
    """
    installed = await own_environment(
        "openapi",
        f"{SCHEMATHESIS}-{VALIDATOR}",
        f"schemathesis=={SCHEMATHESIS}",
        f"openapi-spec-validator=={VALIDATOR}",
    )
    python = installed / "bin/python"
    # Also the tenant: other tests of the same process leave rules of `ada` behind, whose worker has ended, so that 503 is right.
    queue = f"openapi-{uuid.uuid4().hex[:6]}"
    worker = running_worker(lab.client, load(["tests.support.openapi_agents"]), lab.telemetry, queue)
    async with worker, http_server(lab.client, task_queue=queue, tokens=f"{queue}:token-of-its-own") as door:
        agents = (await door.http.get("/api/agents", headers=door.by(queue))).text
        assert '"name":"support"' in agents
        assert str(ROOT) not in agents
        document = tmp_path / "openapi.json"
        document.write_text((await door.http.get("/api/openapi.json")).text)
        code, told = await _run(tmp_path, python, "-m", "openapi_spec_validator", document)
        assert code == 0, told
        example = json.loads(document.read_text())["components"]["schemas"]["NewRun"]["examples"][0]
        started = await door.http.post("/api/runs", json=example, headers=door.by(queue))
        assert started.status_code == 201, started.text
        (tmp_path / "schemathesis.toml").write_text(CONFIG.format(run_id=started.json()["id"]))
        schemathesis = (
            python, installed / "bin/st", "run", f"{door.url}/api/openapi.json",
            "-H", "Authorization: Bearer token-of-its-own", "--checks", ",".join(CHECKS),
            "--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES), "--generation-deterministic",
            "--request-timeout", str(SECONDS_TO_ANSWER), "--suppress-health-check", "all", "--warnings", "off", "--continue-on-failure",
        )  # fmt: skip
        ran = await asyncio.gather(*(_run(tmp_path, *schemathesis, *part) for part in PARTS))
        for code, told in ran:
            assert code == 0, failures_of(told)
        told = "".join(text for _, text in ran)
        [operations] = set(re.findall(r"Selected: \d+/(\d+)", told))
        assert sum(map(int, re.findall(r"Tested: (\d+)", told))) == int(operations)
