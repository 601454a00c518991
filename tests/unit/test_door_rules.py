"""What holds for every door over every log, and over random ones: clients take each frame, and have what the run has said.

And whoever returns after any frame gets exactly the rest.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from mulligan.serve import ag_ui, ai_sdk, turn_stream
from mulligan.serve.openai_api.chat_completions import completion_json
from mulligan.serve.turn_stream import VOID_CALL
from mulligan.serve.ui_message import UIMessage
from mulligan.wire.event_types import TextDelta, TextVoid, ToolInputDelta
from tests.support.door_clients import AgUiClient, AiSdkClient, ResponseClient, check_chat
from tests.support.door_streams import (
    BODY,
    DOORS,
    Frames,
    ag_ui_after,
    ai_sdk_whole,
    response_after,
    thread_turn,
)
from tests.support.event_logs import LOGS
from tests.support.random_run_logs import RandomLog
from tests.support.run_log import RunLog, watched

ENDED = [name for name, make in LOGS.items() if make().is_ended]
LIVE = (TextDelta, TextVoid, ToolInputDelta)
USER = {"id": "m1", "role": "user", "content": "Go."}
randoms = st.integers(0, 2**32).map(Random)
EXAMPLES = int(os.environ.get("DOOR_EXAMPLES", "40"))
"""Random runs of each rule; more by hand: DOOR_EXAMPLES=2000."""
tried = settings(derandomize=True, deadline=None, max_examples=EXAMPLES)


@pytest.fixture(autouse=True, scope="module")
def _no_pauses() -> Iterable[None]:
    """A log has all of its events at once: nothing comes after a pause."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turn_stream, "QUIET_SECONDS", 0.01)
        yield


over_all_logs = pytest.mark.parametrize("log", [pytest.param(make(), id=name) for name, make in LOGS.items()])
over_ended_logs = pytest.mark.parametrize("log", [pytest.param(LOGS[name](), id=name) for name in ENDED])


# Our own events


@over_ended_logs
async def test_our_own_events_are_the_runs_and_each_token_resumes_after_its_event(log: RunLog) -> None:
    frames = await DOORS["api"](log)
    own = [{**frame, "token": None} for frame in frames if frame["type"] != "sub_run"]
    expected = [{**json.loads(each.model_dump_json()), "token": None} for each in log.events]
    assert own == expected
    tokens = [frame["token"] for frame in frames]
    assert len(set(tokens)) == len(tokens)
    for place, token in enumerate(tokens):
        assert [json.loads(each.json) for each in await watched(log, token)] == frames[place + 1 :]


@tried
@given(randoms)
async def test_each_token_of_a_random_run_resumes_after_its_event(random: Random) -> None:
    log = RandomLog(random).make()
    frames = await DOORS["api"](log)
    assert len({frame["token"] for frame in frames}) == len(frames)
    for place in random.sample(range(len(frames)), min(3, len(frames))):
        rest = [json.loads(each.json) for each in await watched(log, frames[place]["token"])]
        assert rest == frames[place + 1 :]


# AG-UI


def ag_ui_client(frames: Frames) -> AgUiClient:
    client = AgUiClient(USER)
    for frame in frames:
        client.take(frame)
    assert client.ended
    return client


def ag_ui_messages(log: RunLog) -> dict[str, Any]:
    """The messages of a client that reads the conversation."""
    translator = ag_ui.Translator(BODY, thread_turn())
    for event in log.events:
        if hasattr(event, "offset"):
            translator.view.add(event)
    return by_place({each["id"]: each for each in translator.snapshot()["messages"]})


def shown(message: dict[str, Any]) -> dict[str, Any]:
    """A message as its page shows it. Calls that are written live come first, and why a call failed is in its text."""
    calls = sorted(message.get("toolCalls", ()), key=lambda each: str(each["id"]))
    kept = {**message, "toolCalls": calls}
    return {name: value for name, value in kept.items() if name not in ("error", "id") and value not in ("", [])}


def by_place(messages: dict[str, Any]) -> dict[str, Any]:
    """The messages that say something, by their ids without the number of an answer's text."""
    found = {re.sub(r"(-answer-[0-9]+)-[0-9]+$", r"\1", name): shown(each) for name, each in messages.items()}
    return {name: each for name, each in found.items() if len(each) > 1}


async def check_ag_ui(log: RunLog) -> None:
    assert by_place(ag_ui_client(await DOORS["ag_ui"](log)).messages) == ag_ui_messages(log)


@over_all_logs
async def test_a_page_of_ag_ui_has_the_messages_of_the_conversation(log: RunLog) -> None:
    await check_ag_ui(log)


@tried
@given(randoms)
async def test_a_page_of_ag_ui_has_the_messages_of_a_random_run(random: Random) -> None:
    await check_ag_ui(RandomLog(random).make())


@over_ended_logs
async def test_a_page_of_ag_ui_that_returns_anywhere_has_the_messages_of_the_conversation(log: RunLog) -> None:
    """It begins with a snapshot of what there was."""
    for length in range(1, len(log.entries)):
        assert by_place(ag_ui_client(await ag_ui_after(log, length)).messages) == ag_ui_messages(log), length


@pytest.mark.parametrize("name", ["approval_that_waits", "sub_agent_that_waits"])
async def test_a_client_of_ag_ui_that_returns_before_the_decision_gets_the_interrupt_again(name: str) -> None:
    """After a snapshot. It is an interrupt of the run's own call, also where a sub-agent asks, and names the call below."""
    log = LOGS[name]()
    [*_, paused] = await DOORS["ag_ui"](log)
    [*frames, again] = await ag_ui_after(log, len(log.entries))
    assert [each["type"] for each in frames if each["type"] != "CUSTOM"] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    assert again == paused
    [interrupt] = paused["outcome"]["interrupts"]
    shown = interrupt["metadata"]["mulligan"]
    assert (interrupt["reason"], shown["tool"], shown["arguments"]) == ("tool_call", "refund", {"order": 7})
    if name == "sub_agent_that_waits":
        assert (interrupt["toolCallId"], shown["run_id"], shown["call_id"]) == ("d1", "run-1/d1", "c1")


# AI SDK


def ai_sdk_client(frames: Frames, sdk: int) -> AiSdkClient:
    client = AiSdkClient(sdk)
    for frame in frames:
        client.take(frame)
    assert client.ended
    return client


def stored_message(log: RunLog) -> list[dict[str, Any]]:
    """The parts of the message of a page that reads the conversation."""
    translator, message = ai_sdk.Translator(is_whole=True), UIMessage(log.run_id)
    for event in log.events:
        if hasattr(event, "offset"):
            for chunk in translator.translate(event, str(event.offset + 1)):
                message.add(chunk)
    parts: list[dict[str, Any]] = message.to_json()["parts"]
    return parts


def of_page(parts: list[dict[str, Any]]) -> list[Any]:
    """What a page shows: texts, and calls with what became of them."""
    kept = ("type", "toolCallId", "state", "input", "output", "errorText", "text", "url")
    parts = [each for each in parts if each["type"] != "data-mulligan" and not each.get("toolCallId", "").count("@")]
    shown = [{name: each[name] for name in kept if name in each} for each in parts if each.get("text") != ""]
    return [{**each, "errorText": None} if each.get("state") != "output-error" else each for each in shown]


async def check_ai_sdk(log: RunLog) -> None:
    stored = of_page(stored_message(log))
    client = ai_sdk_client(await DOORS["ai_sdk"](log), 7)
    whole = ai_sdk_client(await ai_sdk_whole(log), 7)
    assert sorted(map(str, of_page(whole.message.to_json()["parts"]))) == sorted(map(str, stored))
    old = ai_sdk_client(await DOORS["ai_sdk_6"](log), 6)
    settled = {each["toolCallId"]: each for each in stored if each.get("state", "").startswith("output-")}
    for each in (client, old):
        calls = {part["toolCallId"]: part for part in of_page(each.message.to_json()["parts"]) if "toolCallId" in part}
        assert {name: part for name, part in calls.items() if name in settled} == settled
    texts = [each["text"] for each in stored if "text" in each]
    assert [each["text"] for each in of_page(client.message.to_json()["parts"]) if "text" in each] == texts


@over_ended_logs
async def test_a_page_of_the_ai_sdk_has_the_message_of_the_conversation(log: RunLog) -> None:
    """The page that replies, one that comes later, and one with version 6, which shows void text too."""
    await check_ai_sdk(log)


@tried
@given(randoms)
async def test_a_page_of_the_ai_sdk_has_the_message_of_a_random_run(random: Random) -> None:
    await check_ai_sdk(RandomLog(random).make())


def test_a_decision_is_told_in_the_message_of_the_conversation() -> None:
    [denied] = [each for each in stored_message(LOGS["approval_is_denied"]()) if "toolCallId" in each]
    assert denied["state"] == "output-denied"
    assert (denied["approval"]["approved"], denied["approval"]["reason"]) == (False, "Too much.")


@pytest.mark.parametrize("door", ["ag_ui", "ai_sdk", "ai_sdk_6"])
async def test_a_message_that_joins_the_run_has_all_of_its_parts(door: str) -> None:
    """Also where it is a picture alone."""
    sent = str(await DOORS[door](LOGS["turn_that_goes_on"]()))
    assert [each in sent for each in ("Hurry.", "And 8?", "https://a/b.png")] == [True] * 3


# OpenAI


async def check_response(log: RunLog, places: Callable[[int], Iterable[int]]) -> None:
    frames = await response_after(log, None)
    client = ResponseClient()
    for frame in frames:
        client.take(frame)
    client.check()
    is_void = any(frame["type"].endswith("item.done") and is_of_void(frame["item"]) for frame in frames)
    is_void |= any(isinstance(event, LIVE) and event.attempt > 1 for event in log.events)
    for place in places(len(frames) - 1):
        rest = await response_after(log, frames[place]["sequence_number"])
        assert output_of(rest[-1]) == output_of(frames[-1]), place
        if not (is_void or is_among_written_calls(frames, place)):
            assert without_places(rest, frames) == without_places(frames[place + 1 :], frames), place


def output_of(end: dict[str, Any]) -> Any:
    """What a response has at its end. Items of a second attempt have other ids where the first one was not seen."""
    kept = ("type", "status", "content", "name", "arguments", "output", "error")
    items = [{name: item.get(name) for name in kept} for item in end["response"]["output"]]
    return end["type"], end["response"]["status"], items


def without_places(frames: Frames, all_frames: Frames) -> Frames:
    """The frames; without the places of items where calls were written live, whose items have the order of the answer.

    Another replica gives them the order in which the calls begin.
    """
    is_live = any(is_live_call(each) for each in all_frames)
    return [{name: value for name, value in each.items() if name != "output_index" or not is_live} for each in frames]


def is_live_call(frame: dict[str, Any]) -> bool:
    begins: bool = frame["type"] == "response.output_item.added" and frame["item"]["type"] == "mcp_call"
    return begins and frame["sequence_number"] % 2**33 >= 4_096


def is_of_void(item: dict[str, Any]) -> bool:
    """Whether an item is void: no other replica knows that it was there, as it is in no stored event."""
    return (item.get("phase") is not None and item["status"] == "incomplete") or VOID_CALL in json.dumps(item)


def is_among_written_calls(frames: Frames, place: int) -> bool:
    """Whether the answer has been read, and not the start of a call that was written live: another replica begins its item."""
    if frames[place]["sequence_number"] % 2**33 >= 4_096:
        return False
    before = [each["item"]["id"] for each in frames[: place + 1] if each["type"] == "response.output_item.added"]
    started = [each["item_id"] for each in frames[: place + 1] if each["type"] == "response.mcp_call_arguments.done"]
    return any(each.startswith("mcp_") and each not in started for each in before)


@over_ended_logs
async def test_the_items_of_a_response_are_whole_and_each_number_resumes_after_its_event(log: RunLog) -> None:
    """On another replica, too, of which nothing is kept: where text or a call was void, it makes the items without them."""
    await check_response(log, range)


@over_ended_logs
async def test_without_live_text_each_number_resumes_after_its_event(log: RunLog) -> None:
    """So it is in a run that has ended, also if there was void text in it."""
    frames = await response_after(log.stored_only(), None)
    for place, frame in enumerate(frames):
        assert await response_after(log.stored_only(), frame["sequence_number"]) == frames[place + 1 :]


@tried
@given(randoms)
async def test_the_items_of_a_random_response_are_whole(random: Random) -> None:
    log = RandomLog(random).make()
    await check_response(log, lambda length: random.sample(range(length), min(3, length)))
    await check_response(log.stored_only(), lambda length: random.sample(range(length), min(3, length)))


@over_all_logs
async def test_the_streams_of_a_response_end_where_it_waits_and_each_is_whole(log: RunLog) -> None:
    client = ResponseClient()
    for frame in await DOORS["responses"](log):
        if client.response is not None:
            client.check(is_paused=True)
            client = ResponseClient()
        client.take(frame)
    client.check(is_paused=not log.is_ended)


async def check_completion(log: RunLog) -> None:
    """The texts of all steps, with void ones and the lines for people between them; then the output."""
    text, place = check_chat(await DOORS["chat_completions"](log)), 0
    for event in log.events:
        if event.type == "answered" and event.text:
            assert event.text in text[place:]
            place = text.index(event.text, place) + len(event.text)
    waits = sum(each.type == "waiting" for each in log.events)
    assert text.count("waits for approval") + text.count("a person has to answer") >= waits


@over_ended_logs
async def test_a_chat_completion_has_the_texts_of_all_steps(log: RunLog) -> None:
    await check_completion(log)


@tried
@given(randoms)
async def test_a_chat_completion_has_the_texts_of_a_random_run(random: Random) -> None:
    await check_completion(RandomLog(random).make())


@over_ended_logs
async def test_a_completion_that_is_not_streamed_has_the_output_alone(log: RunLog) -> None:
    """Structured output as JSON; and the sources of the answer, if the output is its text."""
    [end] = [event for event in log.events if event.type == "run_ended"]
    answers = [event for event in log.events if event.type == "answered"]
    if end.result is None:
        return  # it is refused: test_serve_openai.py
    head = {"id": log.run_id, "created": 0, "model": log.agent}
    body = completion_json(head, end, answers[-1] if answers else None)
    completion = ChatCompletion.model_validate(body)
    output = end.result.output
    assert completion.choices[0].message.content == (
        output or "" if isinstance(output, str | None) else json.dumps(output)
    )
    reasons = {"completed": "stop", "stopped": "stop", "refused": "content_filter"}
    assert completion.choices[0].finish_reason == reasons.get(end.status, "length")
    assert len(completion.choices[0].message.annotations or []) == 2 * bool(answers and answers[-1].citations)


async def test_a_source_is_cited_at_its_place_among_the_texts_of_all_steps() -> None:
    """In a completion that is streamed; in a response, at its place in the text of its item."""
    log = LOGS["citations"]()
    frames = await DOORS["chat_completions"](log)
    text = check_chat(frames)
    [notes] = [each["choices"][0]["delta"]["annotations"] for each in frames if "annotations" in str(each)]
    cited = [each["url_citation"] for each in notes]
    assert [text[each["start_index"] : each["end_index"]] for each in cited] == ["Otters swim.", "Look:"]
    [*_, message] = (await response_after(log, None))[-1]["response"]["output"]
    [part] = message["content"]
    places = [(each["start_index"], each["end_index"]) for each in part["annotations"]]
    assert [part["text"][start:end] for start, end in places] == ["Otters swim.", "Look:"]


# MCP


@over_ended_logs
async def test_progress_is_reported_in_lines_from_the_start_to_the_end(log: RunLog) -> None:
    lines = [frame["message"] for frame in await DOORS["mcp"](log)]
    assert lines[0] == "Run run-1 of the agent shop has started."
    [end] = [event for event in log.events if event.type == "run_ended"]
    assert lines[-1] == f"The run has ended: {end.status}."
    assert all(0 < len(line) <= 500 for line in lines)
