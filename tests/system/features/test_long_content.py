"""Images in long runs: through summaries, continue-as-new and resume, in messages, events and spans."""

from __future__ import annotations

import base64
import uuid
from pathlib import Path
from typing import Any

import pytest

from mulligan import Agent, Compaction, Image, resume_run, tool
from mulligan.client.read_run import read_pages
from mulligan.devserver import temporal_server
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.support.compaction_agents import PROMPT, is_summing_up, reading
from tests.support.content_files import png
from tests.support.lab import Lab
from tests.support.temporal import connect_to

PAGES = 9
REQUEST = png(5_000, seed=100)


@tool
def read_page(number: int) -> list[object]:
    """Read a page with a picture."""
    return [f"PAGE {number}: text.", Image.from_bytes(png(5_000, seed=number), name=f"{number}.png")]


album = Agent(name="album", model="openai:nobody", tools=[read_page], features=[Compaction(at=8_000)], max_steps=100)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_a_long_run_keeps_the_requests_image_describes_those_of_old_steps_and_is_resumed_with_them(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path))
    prompt = [{"type": "text", "text": PROMPT}, {"type": "image", "data": encoded(REQUEST), "name": "asked.png"}]
    async with temporal_server(dynamic_config=["limit.historyCount.suggestContinueAsNew=20"]) as server:
        client = await connect_to(server)
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"album-{uuid.uuid4().hex[:6]}")
        async with running_worker(client, load_agents([album], []), lab.telemetry, at.task_queue):
            ran = await at.run(reading(PAGES), agent="album", api="openai", prompt=prompt)

            async def ask(run_id: str | None, name: str, *args: Any) -> Any:
                return await client.get_workflow_handle(ran.id, run_id=run_id).query(name, args=args)

            messages = await read_pages(ask, "messages")
            events = (await ask(ran.handle.first_execution_run_id, "events", 0, 500))["events"]
            first = await client.get_workflow_handle(ran.id, run_id=ran.handle.first_execution_run_id).describe()
            resumed = await resume_run(client, ran.id, "Which word?", task_queue=at.task_queue)
            again = await at.look(resumed)
    assert ran.result["output"] == f"heron, after {PAGES}"
    assert first.status is not None
    assert first.status.name == "CONTINUED_AS_NEW"
    bodies = [(request.json, request.body.decode()) for request in ran.requests]
    summed_up, asked = ([text for body, text in bodies if is_summing_up(body) is kind] for kind in (True, False))
    assert len(summed_up) >= 2
    assert all(encoded(REQUEST) in text for text in asked)  # the request's image is never summarized
    pictures = [encoded(png(5_000, seed=number)) for number in range(1, PAGES + 1)]
    assert not any(picture in text for picture in pictures for text in summed_up)
    size = len(png(5_000))
    described = [
        number
        for number in range(1, PAGES + 1)
        if f'[image \\"{number}.png\\" (image/png, {size:,} bytes)]' in summed_up[0]
    ]
    assert described[:2] == [1, 2]
    assert "[result of read_page]" in summed_up[0]
    results = [message for message in messages if message["role"] == "tool"]
    assert [part["name"] for each in results for part in each["content"][1:]] == [f"{n + 1}.png" for n in range(PAGES)]
    assert all(
        part.keys() == {"type", "media_type", "name", "ref", "size"} for each in results for part in each["content"][1:]
    )
    settled = [event["result"]["content"][1]["ref"] for event in events if event["type"] == "tool_call_settled"]
    assert settled
    assert set(settled) <= {each["content"][1]["ref"] for each in results}
    tools = [span for span in ran.spans if span.name == "ai.toolCall"]
    assert [span.attributes["mulligan.content"][0].split()[:2] for span in tools] == [["image/png", str(size)]] * PAGES
    assert not any(picture[100:200] in str(span.attributes) for span in ran.spans for picture in pictures)
    last = lab.model.requests_of(ran.id)[-1].body.decode()  # the resumed run has the same model
    assert again.result["status"] == "completed"
    assert encoded(REQUEST) in last
    assert "Which word?" in last
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == PAGES + 1
