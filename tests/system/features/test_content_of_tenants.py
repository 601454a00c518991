"""Content belongs to a tenant: who knows the digest of another tenant's content gets nothing, by whatever way."""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mulligan import Image, ModelUnavailableError, RunInput, UserMessage
from mulligan.client.content_store import configured_content_store
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.content_files import png
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab, call

TOKENS = "ada:token-of-ada,bob:token-of-bob"
SECRET = png(5_000, seed=7)
MISSING = "is not in the content storage"


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture(scope="module")
async def tenants(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Lab, Door]]:
    queue = f"tenants-{uuid.uuid4().hex[:6]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path_factory.mktemp("content")))
        patch.setenv("MULLIGAN_PREFIX_CACHE_BYTES", "0")  # each step reads the storage
        client = await lab.another_client()
        async with (
            running_worker(client, load(["tests.support.content_agents"]), lab.telemetry, queue),
            http_server(client, tokens=TOKENS, task_queue=queue) as door,
        ):
            yield Lab(client, lab.model, lab.otlp, lab.telemetry, queue), door


async def start(at: Lab, door: Door, caller: str, turns: list[Any], **fields: Any) -> Any:
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    at.model.script(run_id, turns)
    run = {"id": run_id, "agent": "painter", "model": f"openai:{run_id}", **fields}
    return await door.http.post("/api/runs", json=run, headers=door.by(caller))


async def ended(door: Door, caller: str, answer: Any) -> str:
    assert answer.status_code == 201, answer.text
    run_id: str = answer.json()["id"]
    read = await door.http.get(f"/api/runs/{run_id}?wait=60", headers=door.by(caller))
    assert read.json()["status"] == "completed"
    return run_id


async def test_a_reference_reaches_the_content_of_its_own_tenant_only(tenants: tuple[Lab, Door]) -> None:
    """In a prompt, in messages, in a message to an open run, when a run is resumed, and as a tool's result."""
    at, door = tenants
    image = {"type": "image", "data": encoded(SECRET), "name": "secret.png"}
    of_ada = await ended(door, "ada", await start(at, door, "ada", [call("texts"), DONE, DONE, DONE], prompt=[image]))
    messages = await door.http.get(f"/api/runs/{of_ada}/messages", headers=door.by("ada"))
    ref = messages.json()["messages"][0]["content"][0]["ref"]
    stored = {"type": "image", "ref": ref, "media_type": "image/png"}

    async def ways(caller: str) -> list[tuple[int, str]]:
        """The status and the text of each way to refer to it."""
        asked = [call("ask_person", '{"question": "Go on?"}'), DONE, DONE]
        found = [
            await start(at, door, caller, [DONE], prompt=[stored]),
            await start(at, door, caller, [DONE], messages=[{"role": "user", "content": [stored]}]),
        ]
        before = await ended(door, caller, await start(at, door, caller, [DONE, DONE], prompt="Go."))
        resume = f"/api/runs/{before}/resume"
        found.append(await door.http.post(resume, json={"prompt": [stored]}, headers=door.by(caller)))
        waiting = (await start(at, door, caller, asked, prompt="Go.", agent="asker")).json()["id"]
        path = f"/api/runs/{waiting}"
        body = {"text": "Look.", "content": [stored]}
        found.append(await door.http.post(f"{path}/messages", json=body, headers=door.by(caller)))
        await door.http.post(f"{path}/cancel", headers=door.by(caller))
        return [(answer.status_code, answer.text) for answer in found]

    assert all(status in (200, 201) for status, _ in await ways("ada"))
    refused = await ways("bob")
    assert [status for status, _ in refused] == [422, 422, 422, 409]
    assert all(MISSING in text for _, text in refused)
    showing = [call("show", f'{{"ref": "{ref}"}}'), DONE]
    for caller, error in (("bob", "invalid_result"), ("ada", None)):
        shown = await ended(door, caller, await start(at, door, caller, showing, prompt="Go."))
        steps = (await door.http.get(f"/api/runs/{shown}/steps", headers=door.by(caller))).json()["steps"]
        result = steps[0]["tool_calls"][0]["result"]
        assert (result["error"] or {}).get("kind") == error
        sent = [request.body.decode() for request in at.model.requests_of(shown)]
        assert any(encoded(SECRET) in body for body in sent) is (caller == "ada")


async def test_a_run_that_a_client_starts_past_the_door_cannot_read_another_tenants_content(
    tenants: tuple[Lab, Door],
) -> None:
    """It names the reference in its messages, which only the worker resolves. The tenant's own runs can."""
    at, _ = tenants
    store = configured_content_store()
    assert store is not None
    ref = await store.of("ada").put(SECRET)
    message = UserMessage(role="user", content=[Image(ref=ref, media_type="image/png", size=len(SECRET))])
    given = RunInput(agent="painter", messages=[message]).model_dump(mode="json", exclude_none=True)
    for tenant in ("bob", None):
        ran = await at.run([DONE], agent="hasty", tenant=tenant, prompt=None, messages=given["messages"])
        assert isinstance(ran.error, ModelUnavailableError)
        assert MISSING in ran.error.message
        assert ran.requests == []
    ran = await at.run([DONE], agent="painter", tenant="ada", prompt=None, messages=given["messages"])
    assert encoded(SECRET) in ran.requests[0].body.decode()


async def test_the_storage_tells_nothing_about_tenants_in_its_names(tenants: tuple[Lab, Door]) -> None:
    store = configured_content_store()
    assert store is not None
    data = png(5_000, seed=9)
    refs = [await store.of(tenant).put(data) for tenant in (None, "ada", "bob", "ada")]
    assert len(set(refs)) == 1
    names = [path.name for path in Path(os.environ["MULLIGAN_CONTENT_DIR"]).rglob("*") if path.is_file()]
    assert sum(name == refs[0].removeprefix("sha256:") for name in names) == 1
    assert all(len(name) == 64 for name in names)
