"""The arguments of calls while models write them: what each provider passes on, what heartbeats have, what readers make of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.client import Client

from mulligan import Agent, tool
from mulligan.activities.answers.written_calls import WrittenCalls
from mulligan.activities.echoed_secrets import EchoedSecrets
from mulligan.activities.models._read_response import StreamAssembler, _without_secrets
from mulligan.activities.models.anthropic._anthropic_assembler import AnthropicAssembler
from mulligan.activities.models.google._google_assembler import GoogleAssembler
from mulligan.activities.models.live_text import MAX_BYTES, MOST_PARTS, LiveTextHeartbeats
from mulligan.activities.models.openai._chat_assembler import ChatAssembler
from mulligan.activities.models.openai._responses_assembler import ResponsesAssembler
from mulligan.client.live_pace import FASTEST, MOST_PER_SECOND, SLOWEST, LivePace, is_cloud
from mulligan.client.live_reader import live_events
from mulligan.tools import ask_person
from mulligan.values import ToolCall
from mulligan.wire.event_types import LIVE_TEXT, LiveCall, LiveText, TextDelta, ToolInputDelta

AT = datetime(2026, 11, 26, tzinfo=UTC)
Written = list[tuple[int | None, str]]


class Heart:
    """Heartbeats that a test sends itself."""

    def __init__(self) -> None:
        self.sent: list[LiveText] = []
        self.due: list[Any] = []

    def call_later(self, _seconds: float, send: Any) -> Any:
        self.due.append(send)
        return SimpleNamespace(cancel=lambda: None)

    def send_live(self, live: dict[str, Any]) -> None:
        self.sent.append(LiveText.model_validate(json.loads(json.dumps(live[LIVE_TEXT]))))

    def beat(self) -> None:
        self.due.pop()()


def heartbeats(*beats: Written) -> list[LiveText]:
    """The heartbeats of an answer; each carries pieces of text (None) and of calls."""
    heart = Heart()

    def describe(calls: Sequence[ToolCall]) -> LiveCall:
        return LiveCall(index=len(calls) - 1, name=calls[-1].name, call_id=calls[-1].id)

    live = LiveTextHeartbeats(cast(Any, heart), LivePace(1), "0", 3, 1, describe=describe)
    for beat in beats:
        for index, piece in beat:
            if index is None:
                live.write(piece)
            else:
                live.write_call(index, f"c{index}", f"tool_{index}", piece)
        heart.beat()
    return heart.sent


def read(sent: list[LiveText], seen: int = 0) -> tuple[dict[int | None, str], int]:
    """What a reader has of the text and of each call, and how many characters it has seen."""
    found: dict[int | None, str] = {}
    for text in sent:
        for event, now in live_events(text, seen, 3, AT):
            assert now > seen
            key = event.index if isinstance(event, ToolInputDelta) else None
            assert key not in found or event.start == len(found[key])
            found[key] = found.get(key, "") + event.text
            seen = now
    return found, seen


BEATS: list[Written] = [
    [(None, "Let me "), (None, "look.")],
    [(0, ""), (0, '{"a":'), (0, " 1}"), (1, "")],
    [(1, '{"b": "\ud83d')],
    [(1, '\ude48"}'), (None, "Done.")],
]
WHOLE = {None: "Let me look.Done.", 0: '{"a": 1}', 1: '{"b": "🙈"}'}


def test_a_reader_has_each_call_in_its_place_and_the_text_before_and_after() -> None:
    """However often it looks."""
    sent = heartbeats(*BEATS)
    assert read(sent)[0] == WHOLE
    assert read(sent[-1:])[0] == WHOLE
    first, opened, *_ = [event for event, _ in live_events(sent[-1], 0, 3, AT)]
    assert isinstance(first, TextDelta)
    assert isinstance(opened, ToolInputDelta)
    assert (opened.name, opened.call_id, opened.text, opened.start) == ("tool_0", "c0", "", 0)


def test_a_reader_that_continues_anywhere_gets_each_character_once() -> None:
    [*_, last] = sent = heartbeats(*BEATS)
    total = last.start + len(last.text)
    for seen in range(total + 1):
        before = last.model_copy(update={"text": last.text[:seen]})
        rest = [event for event, _ in live_events(last, seen, 3, AT)]
        for key, whole in WHOLE.items():
            known = [event for event, _ in live_events(before, 0, 3, AT) if getattr(event, "index", None) == key]
            mine = [event for event in rest if getattr(event, "index", None) == key]
            assert "".join(event.text for event in [*known, *mine]) == whole, seen
    assert read(sent, total) == ({}, total)


def test_a_heartbeat_is_bounded_in_bytes_and_in_parts() -> None:
    """What does not fit comes with the answer."""
    [sent] = heartbeats([(None, "x" * MAX_BYTES), (0, "y" * 100)])
    assert len(sent.text.encode()) == MAX_BYTES
    events = [event for event, _ in live_events(sent, 0, 3, AT)]
    assert [(event.start, len(event.text)) for event in events] == [(102, MAX_BYTES - 102), (0, 0), (0, 100)]
    [many] = heartbeats([(index % 2, "a") for index in range(3 * MOST_PARTS)])
    assert len(many.parts) == MOST_PARTS


def test_heartbeats_of_other_programs_harm_no_reader() -> None:
    parts = [{"at": 10**11, "start": 0, "call": {"index": 0, "name": "x"}}, {"at": 0, "start": 5}]
    odd = {"conversation": "0", "step": 1, "attempt": 1, "start": 0, "text": "Hello", "parts": parts}
    assert len(list(live_events(LiveText.model_validate(odd), 0, 1, AT))) <= 3


CHAT = [
    {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "find", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"x":'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]},
    {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "pay", "arguments": "{}"}}]},
]
ITEMS: list[dict[str, Any]] = [
    {"type": "message"},
    {"type": "function_call", "call_id": "a", "name": "find", "arguments": ""},
    {"type": "web_search_call", "id": "ws"},
    {"type": "function_call", "call_id": "b", "name": "pay", "arguments": ""},
]
DELTA = "response.function_call_arguments.delta"
RESPONSES: list[dict[str, Any]] = [
    *({"type": "response.output_item.added", "output_index": n, "item": item} for n, item in enumerate(ITEMS)),
    *({"type": DELTA, "output_index": n, "delta": each} for n, each in ((1, '{"x":'), (1, " 1}"), (3, "{}"), (9, "?"))),
]
BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": ""},
    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
    {"type": "tool_use", "id": "a", "name": "find", "input": {}},
    {"type": "tool_use", "id": "b", "name": "pay", "input": {}},
]
JSON_DELTA = "input_json_delta"
ANTHROPIC: list[dict[str, Any]] = [
    *({"type": "content_block_start", "index": n, "content_block": block} for n, block in enumerate(BLOCKS)),
    *(
        {"type": "content_block_delta", "index": n, "delta": {"type": JSON_DELTA, "partial_json": each}}
        for n, each in ((1, '{"query": 1}'), (2, '{"x":'), (2, " 1}"), (3, "{}"))
    ),
]
GOOGLE = [
    {"text": "Hm."},
    {"functionCall": {"id": "a", "name": "find", "args": {"x": 1}}},
    {"functionCall": {"id": "b", "name": "pay", "args": {}}},
]


@pytest.mark.parametrize(
    ("assembler", "events"),
    [
        (ChatAssembler, [{"choices": [{"index": 0, "delta": delta}]} for delta in CHAT]),
        (ResponsesAssembler, RESPONSES),
        (AnthropicAssembler, ANTHROPIC),
        (GoogleAssembler, [{"candidates": [{"content": {"parts": [part]}}]} for part in GOOGLE]),
    ],
)
def test_each_provider_passes_on_the_calls_of_the_agent_as_they_are_written(
    assembler: type[StreamAssembler], events: list[dict[str, Any]]
) -> None:
    """With their numbers among those of the answer; what the provider carries out itself is none of them."""
    calls: dict[tuple[int, str, str], str] = {}
    assembling = assembler(lambda _: None)

    def write(index: int, call_id: str, name: str, piece: str) -> None:
        calls[index, call_id, name] = calls.get((index, call_id, name), "") + piece

    assembling.on_call = write
    for event in events:
        assembling.add(event)
    assert calls == {(0, "a", "find"): '{"x": 1}', (1, "b", "pay"): "{}"}


def test_secrets_that_an_endpoint_repeats_are_not_in_arguments() -> None:
    """Nor where a secret is cut into pieces, or is a part of a name."""
    secret = "sk-1234567890abcdefghij"
    written: list[tuple[Any, ...]] = []
    write = _without_secrets(lambda *given: written.append(given), EchoedSecrets({"x-api-key": secret}))
    for piece in ('{"key": "sk-1234', '567890abcdefghij"', "}"):
        write(0, "a", f"find_{secret}", piece)
    assert "".join(given[3] for given in written) == '{"key": "[key]"}'
    assert {given[:3] for given in written} == {(0, "a", "find_[key]")}


@tool
def find(x: int) -> str:
    """Find."""
    return str(x)


@tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


@tool(consequential=True)
def send() -> str:
    """Send."""
    return "sent"


def test_what_is_known_of_a_call_is_its_id_and_whether_it_may_wait() -> None:
    """Ids are those that the answer's calls will have. Of a call without one, nothing is known."""
    agent = Agent(name="a", model="openai:x", tools=[find, pay, send, ask_person])
    tools = cast(Any, SimpleNamespace(find=agent.tool, names=["find", "pay", "send", "ask_person", "final"]))
    names = ("find", "pay", "send", "ask_person", "final", "fnid")
    ids = ("a b", "used", "", "c", "c", "d")
    calls = [ToolCall(id=call_id, name=name, arguments="") for name, call_id in zip(names, ids, strict=True)]
    request = cast(Any, SimpleNamespace(step=4, summarized_answers=None))
    written = WrittenCalls(request, tools, cast(Any, SimpleNamespace(call_ids={"used"})))
    known = [written.last_of(calls[:count]) for count in range(1, 7)]
    assert [each.index for each in known] == [*range(6)]
    assert [each.may_wait for each in known] == [False, True, True, True, False, True]
    assert [each.call_id for each in known] == ["a_b", "used_4_1", "", "c", "c_4_4", "d"]


def test_calls_are_described_when_a_heartbeat_has_them_and_a_number_that_is_left_out_is_none() -> None:
    """An answer that is complete before its first heartbeat costs no look at tools and ids."""
    heart, described = Heart(), list[int]()

    def describe(calls: Sequence[ToolCall]) -> LiveCall:
        described.append(len(calls))
        return LiveCall(index=len(calls) - 1, name=calls[-1].name)

    live = LiveTextHeartbeats(cast(Any, heart), LivePace(1), "0", 3, 1, describe=describe)
    live.write_call(0, "a", "find", "{}")
    live.write_call(9, "z", "find", "{}")
    assert described == []
    heart.beat()
    live.write_call(0, "a", "find", " ")
    heart.beat()
    assert described == [1]
    assert read(heart.sent)[0] == {0: "{} "}


def test_the_pace_depends_on_how_many_runs_are_live_and_on_the_server() -> None:
    """On Temporal Cloud it is what it was; a fixed one does not change."""
    own = cast(
        Client, SimpleNamespace(service_client=SimpleNamespace(config=SimpleNamespace(target_host="temporal:7233")))
    )
    pace = LivePace(SLOWEST, FASTEST)
    assert pace.seconds == FASTEST
    with pace.counted(own):
        pace._live += 39
        assert pace.seconds == 40 / MOST_PER_SECOND
        pace._live += 1_000
        assert (pace.seconds, pace.up_to(2)) == (SLOWEST, 2)
        pace._live -= 1_039
    assert pace.seconds == FASTEST
    hosts = ("eu.tmprl.cloud:7233", "https://us-east-1.aws.api.temporal.io:7233", "tmprl.cloud.example:7233")
    assert [is_cloud(host) for host in hosts] == [True, True, False]
    cloud = SimpleNamespace(service_client=SimpleNamespace(config=SimpleNamespace(target_host=hosts[0])))
    with pace.counted(cast(Client, cloud)):
        assert (pace.seconds, pace.up_to(2)) == (SLOWEST, 2)
    assert (LivePace(0.5).seconds, LivePace(0.5).up_to(2)) == (0.5, 2)
