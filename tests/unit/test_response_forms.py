"""The forms of `/v1/responses`: OpenAI's and Open Responses' say the same in other words.

What each says of each log, exactly: test_door_frames.py. Whether it is the published schema's: tests/system/test_open_responses.py.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from mulligan.serve import turn_stream
from mulligan.serve.caller import ANYBODY
from mulligan.serve.create_app import create_app
from mulligan.serve.openai_api.input_items import input_messages, replies
from mulligan.serve.openai_api.item_ids import NewItems, split_new_items
from mulligan.serve.openai_api.response_events import ResponseEvents
from mulligan.serve.openai_api.response_form import OPEN_RESPONSES, OPENAI, ResponseForm, form_of
from mulligan.serve.openai_api.response_stream import broken_frames, response_frames
from mulligan.serve.problems import Problem
from mulligan.serve.runs import Runs
from tests.support.door_streams import DOORS, END, head_of, parsed, response_after
from tests.support.event_logs import LOGS
from tests.support.run_log import LoggedRuns, RunLog

PLACES = ("sequence_number", "item_id", "output_index", "content_index", "delta", "text", "arguments")
PROBLEM = Problem(503, "no_worker", "No worker answers.")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log has all of its events at once: nothing comes after a pause."""
    monkeypatch.setattr(turn_stream, "QUIET_SECONDS", 0.01)


@pytest.mark.parametrize("name", LOGS)
async def test_both_forms_have_the_same_events_in_the_same_places(name: str) -> None:
    """So what is tested of one holds for the other: whole items, and the rest after each number. Only one says `[DONE]`."""
    openais = await DOORS["responses"](LOGS[name]())
    sent = await DOORS["open_responses"](LOGS[name]())
    ends = [place for place, frame in enumerate(sent) if frame == END]
    assert len(ends) == sum(frame["type"] == "response.created" for frame in openais)
    assert ends[-1] == len(sent) - 1
    events = [frame for frame in sent if frame != END]
    assert [_place(frame) for frame in events] == [_place(frame) for frame in openais]
    assert [_in_openais_words(frame["type"]) for frame in events] == [frame["type"] for frame in openais]


def _place(frame: dict[str, Any]) -> Any:
    item = frame.get("item", {})
    return [frame.get(name) for name in PLACES], item.get("id"), item.get("output"), item.get("content")


def _in_openais_words(kind: str) -> str:
    return kind.replace("mulligan:tool_call", "response.mcp_call")


def test_a_header_asks_for_the_form_whatever_version_it_names() -> None:
    for headers, form in (([], OPENAI), ([(b"openresponses-version", b"latest")], OPEN_RESPONSES)):
        request = Request({"type": "http", "method": "POST", "path": "/v1/responses", "headers": headers})
        assert asyncio.run(form_of(request)) is form


@pytest.mark.parametrize(("form", "reason"), [(OPENAI, None), (OPEN_RESPONSES, "stopped")])
async def test_a_run_that_was_stopped_is_incomplete(form: ResponseForm, reason: str | None) -> None:
    """OpenAI has no word for it, and Open Responses wants some word."""
    end = [frame for frame in await response_after(LOGS["stopped"](), None, form) if frame != END][-1]
    assert (end["type"], end["response"]["incomplete_details"]) == ("response.incomplete", {"reason": reason})


class _Broken(LoggedRuns):
    """A run whose events cannot be followed any more after the first ones."""

    async def watch(self, *given: Any, **more: Any) -> Any:
        watched: Any = await super().watch(*given, **more)

        async def first() -> Any:
            async with aclosing(watched) as stream:
                async for each in stream:
                    yield each
                    raise PROBLEM

        return first()


@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_stream_that_cannot_go_on_ends_with_an_error_that_does_not_say_that_the_run_has_failed(
    is_begun: bool,
) -> None:
    log = RunLog().begin()
    ends = {}
    for form in (OPENAI, OPEN_RESPONSES):
        events = ResponseEvents(head_of(log), form)
        if is_begun:
            sent = await parsed(await response_frames(cast(Runs, _Broken(log)), ANYBODY, log.run_id, events))
        else:
            sent = [
                json.loads(frame.split(b"data: ")[1])
                for frame in broken_frames(events, PROBLEM)
                if b"DONE" not in frame
            ]
        assert [frame["type"] for frame in sent[:2]] == ["response.created", "response.in_progress"]
        ends[form.is_open] = [frame for frame in sent[2:] if frame != END]
        assert (sent[-1] == END) == (is_begun and form.is_open)
    [openais], [error] = ends[False], ends[True]
    assert (openais["type"], openais["code"], openais["message"]) == ("error", "no_worker", "No worker answers.")
    assert error["sequence_number"] == openais["sequence_number"]
    assert error["error"] == {
        "type": "server_error",
        "code": "no_worker",
        "message": "No worker answers.",
        "param": None,
    }


def test_items_that_come_back_are_read_in_the_words_of_both() -> None:
    """A client may send them without the header: what is in them says what they are."""
    call = {"id": "mcp_c1@r", "status": "completed", "name": "find", "arguments": '{"order": 7}', "output": "order 7"}
    request = {"id": "mcpr_c2@r", "name": "refund", "arguments": "{}"}
    read = []
    for of_call, of_request in (
        ("mcp_call", "mcp_approval_request"),
        ("mulligan:tool_call", "mulligan:approval_request"),
    ):
        items = [{"type": of_call, **call}, {"type": of_request, **request}, {"role": "user", "content": "Go on."}]
        read.append(input_messages(items))
    assert read[0] == read[1]
    assert [each["role"] for each in read[1]] == ["assistant", "tool", "user"]
    reply = {"approval_request_id": "mcpr_c2@r", "approve": False, "reason": "No."}
    [old], [new] = (
        replies([{"type": kind, **reply}], of_any_run=False)
        for kind in ("mcp_approval_response", "mulligan:approval_response")
    )
    assert (old, old.approve, old.call.sub_run) == (new, False, "r")


@pytest.mark.parametrize("kind", [{"type": "item_reference"}, {"type": None}, {}])
def test_a_reference_may_leave_out_its_type(kind: dict[str, Any]) -> None:
    new = {"role": "user", "content": "Go on."}
    assert split_new_items([{**kind, "id": "msg_1@resp_1"}, new]) == NewItems([new], run="resp_1")
    assert split_new_items([{"role": "assistant", "content": "Hello.", "id": "msg_1@resp_1"}, new]) == NewItems([new])


@pytest.mark.parametrize("path", ["compact", "input_tokens", "resp_1/input_items"])
def test_what_is_not_served_says_what_there_is(path: str) -> None:
    with TestClient(create_app(tokens=""), base_url="http://127.0.0.1") as client:
        answer = client.post(f"/v1/responses/{path}", json={})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "path_not_found")
    for named in (f"POST /v1/responses/{path}", "previous_response_id", "cancel", "docs/compaction.md"):
        assert named in error["message"]
