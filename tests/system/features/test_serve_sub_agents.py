"""The stream of a run has the events of its sub-agents, and what tools report, marked with their source."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mulligan import events
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import Door, Frame, http_server
from tests.support.lab import Lab


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    queue = f"reporting-{uuid.uuid4().hex[:6]}"
    loaded = load(["tests.support.reporting_agents"])
    async with (
        running_worker(lab.client, loaded, lab.telemetry, queue),
        http_server(lab.client, task_queue=queue) as served,
    ):
        yield served


def by_run(frames: list[Frame]) -> dict[str, list[dict[str, Any]]]:
    """The stored events of each run in a stream; those of the run itself under an empty id."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for frame in frames:
        event = frame.data["event"] if frame.event == "sub_run" else frame.data
        if "offset" in event:
            found[frame.data["source"]["id"] if frame.event == "sub_run" else ""].append(
                {name: value for name, value in event.items() if name != "token"}
            )
    return found


async def stored(lab: Lab, run_id: str) -> list[dict[str, Any]]:
    """The same, by the Python client."""
    found = [event async for event in events.follow(lab.client, run_id)]
    return [event.model_dump(mode="json", exclude={"token"}) for event in found if "offset" in event.model_fields_set]


async def test_a_stream_has_the_events_of_all_runs_below_it_in_order(lab: Lab, door: Door, tmp_path: Path) -> None:
    """Live, and for who comes later; from each id on."""
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    run = {"id": run_id, "agent": "director", "prompt": str(tmp_path)}
    assert (await door.http.post("/api/runs", json=run)).status_code == 201
    live: list[Frame] = []
    reported = set()
    async for frame in door.frames(run_id):
        live.append(frame)
        if frame.event == "sub_run" and frame.data["event"]["type"] == "tool_progress":
            source = frame.data["source"]
            assert (source["agent"], source["depth"]) == ("loader", 2)
            assert frame.data["event"]["name"] == "import_rows"
            reported.add(frame.data["event"]["text"])
            if len(reported) == 2:
                (tmp_path / "left").touch()
                (tmp_path / "right").touch()
    assert reported == {"10 of 100 rows of left", "10 of 100 rows of right"}
    assert len({frame.id for frame in live}) == len(live)
    runs = by_run(live)
    assert len(runs) == 4
    for name, found in runs.items():
        assert found == await stored(lab, name or run_id)
    kinds = [
        (frame.data.get("source", {}).get("depth", 0), (frame.data.get("event") or frame.data)["type"])
        for frame in live
    ]
    assert [kind for kind in kinds if kind[1] in ("run_ended", "tool_call_settled") and kind[0] < 2][-4:] == [
        (1, "tool_call_settled"), (1, "run_ended"), (0, "tool_call_settled"), (0, "run_ended"),
    ]  # fmt: skip
    late = [frame async for frame in door.frames(run_id)]
    assert by_run(late) == runs
    for frames in (live, late):
        for place in range(0, len(frames) - 1, 3):
            again = [frame async for frame in door.frames(run_id, frames[place].id or "")]
            assert by_run(again) == by_run(frames[place + 1 :])


async def test_a_token_of_some_agents_sees_the_runs_of_their_sub_agents_but_cannot_resume_them(
    lab: Lab, door: Door, tmp_path: Path
) -> None:
    for name in ("left", "right"):
        (tmp_path / name).touch()
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    await door.http.post(
        "/api/runs", json={"id": run_id, "agent": "director", "prompt": str(tmp_path), "tenant": "ada"}
    )
    sub_runs = {frame.data["source"]["id"] async for frame in door.frames(run_id) if frame.event == "sub_run"}
    queue = (await lab.client.get_workflow_handle(run_id).describe()).task_queue
    async with http_server(lab.client, tokens="ada:token-of-ada:director", task_queue=queue) as served:
        for sub_run in sub_runs:
            assert (await served.http.get(f"/api/runs/{sub_run}", headers=served.by("ada"))).status_code == 200
            again = {"prompt": str(tmp_path)}
            refused = await served.http.post(f"/api/runs/{sub_run}/resume", json=again, headers=served.by("ada"))
            assert (refused.status_code, refused.json().get("code")) == (404, "agent_not_found")
    assert sub_runs
