"""What MCP servers send that is not as the protocol says: definitions of tools, results, messages, events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp.shared.message import SessionMessage
from mcp.types import CallToolResult, JSONRPCError, JSONRPCRequest, JSONRPCResponse, ListToolsResult
from mcp_types import PROTOCOL_VERSION_META_KEY, jsonrpc_message_adapter, methods
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

from mulligan.activities.mcp.call_result import result_parts, result_text
from mulligan.activities.mcp.readable_events import ReadableEvents, readable_event
from mulligan.activities.mcp.readable_message import ANY_VALUE, IS_UNREADABLE, NAMELESS, readable_messages
from mulligan.activities.mcp.readable_result import readable_result
from mulligan.activities.mcp.readable_streams import readable_streams
from mulligan.activities.mcp.readable_tools import left_out_of, readable_page
from mulligan.activities.mcp.servers import _schemas
from mulligan.activities.mcp.tool_list import list_tools
from mulligan.content import described
from tests.support.odd_mcp import NAMELESS as WITHOUT_NAMES
from tests.support.odd_mcp import PAY, READABLE, RESULTS, UNREADABLE

VERSIONS = sorted(KNOWN_PROTOCOL_VERSIONS)


def parsed_page(page: dict[str, Any], version: str) -> ListToolsResult:
    found = methods.parse_server_result("tools/list", version, readable_page(page, version))
    assert isinstance(found, ListToolsResult)
    return found


def names_of(page: ListToolsResult) -> list[str]:
    """The names of the tools that a model gets."""
    names = []
    for tool in page.tools:
        try:
            _schemas(tool.input_schema)
        except TypeError:
            continue
        names.append(tool.name)
    return names


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("number", range(len(READABLE)))
def test_a_definition_whose_meaning_is_clear_is_read(number: int, version: str) -> None:
    odd: dict[str, Any] = {"name": "odd", "inputSchema": {"type": "object"}}
    READABLE[number](odd)
    page = parsed_page({"tools": [PAY, odd, PAY]}, version)
    assert names_of(page) == ["pay", "odd", "pay"]
    assert left_out_of(page) == {}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("number", range(len(UNREADABLE)))
def test_a_definition_that_cannot_be_read_takes_no_other_with_it(number: int, version: str) -> None:
    """What the protocol allows, but is no JSON schema, is left out later, with its reason."""
    odd: dict[str, Any] = {"name": "odd", "inputSchema": {"type": "object"}}
    UNREADABLE[number](odd)
    page = parsed_page({"tools": [PAY, odd, PAY]}, version)
    assert names_of(page) == ["pay", "pay"]
    assert "odd" in left_out_of(page) or "odd" in [tool.name for tool in page.tools]


def test_a_definition_without_a_name_is_named_by_its_number() -> None:
    page = parsed_page({"tools": [PAY, *WITHOUT_NAMES]}, "2025-06-18")
    assert names_of(page) == ["pay"]
    assert [*left_out_of(page)] == [f"number {number}" for number in range(2, 2 + len(WITHOUT_NAMES))]
    assert left_out_of(page)["number 3"] == "it has no name"
    assert left_out_of(page)["number 5"] == "its definition is not an object"


@pytest.mark.parametrize(
    ("cursor", "read"), [("a", "a"), (5, "5"), ("", None), (None, None), (False, None), ([], None)]
)
def test_a_cursor_is_a_text_or_none(cursor: Any, read: str | None) -> None:
    assert parsed_page({"tools": [PAY], "nextCursor": cursor}, "2025-06-18").next_cursor == read


class Pages:
    """A client whose server has these pages: cursors and names of tools. After the last, it begins again."""

    def __init__(self, *pages: tuple[str | None, list[str]]) -> None:
        self.pages, self.asked = pages, 0

    async def list_tools(self, *, cursor: str | None) -> ListToolsResult:
        more, names = self.pages[self.asked % len(self.pages)]
        self.asked += 1
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        return ListToolsResult.model_validate({"tools": tools, "nextCursor": more})


@pytest.mark.parametrize(
    ("pages", "asked", "names"),
    [
        ([("b", ["t1"]), (None, ["t2"])], 2, ["t1", "t2"]),
        ([("same", ["t1"])], 2, ["t1"]),
        ([("a", ["t1"]), ("b", ["t2"]), ("a", ["t3"]), ("b", ["t4"])], 3, ["t1", "t2", "t3"]),
        ([(str(n), ["t1"]) for n in range(90)], 2, ["t1"]),
        ([("b", []), ("c", []), (None, ["t1"])], 3, ["t1"]),
    ],
    ids=["an end", "one cursor again and again", "a circle", "always another cursor", "empty pages"],
)
async def test_a_list_without_an_end_is_read_once(pages: list[Any], asked: int, names: list[str]) -> None:
    client: Any = Pages(*pages)
    assert [tool.name for tool in (await list_tools(client)).tools] == names
    assert client.asked == asked


def parsed_result(result: Any, version: str) -> CallToolResult:
    [line] = readable_messages(json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode())
    read = readable_result(json.loads(line)["result"], version)
    found = methods.parse_server_result("tools/call", version, read)
    assert isinstance(found, CallToolResult)
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("number", range(len(RESULTS)))
def test_each_odd_result_reaches_the_model(number: int, version: str) -> None:
    found = parsed_result(RESULTS[number]("paid-1"), version)
    assert "paid-1" in result_text(found)
    assert "paid-1" in described(result_parts(found)) or not result_parts(found)


def test_a_result_as_the_protocol_says_has_no_sentence() -> None:
    found = parsed_result({"content": [{"type": "text", "text": "paid"}], "structuredContent": {"a": 1}}, "2025-06-18")
    assert result_text(found) == "paid"
    assert found.structured_content == {"a": 1}
    assert result_text(parsed_result({"content": []}, "2025-06-18")) == "[no content]"


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"content": "paid"}, "its content is not a list"),
        ("paid", "it is not an object"),
        ({"order": "paid"}, "it has fields of its own, which are shown as JSON"),
        ({"content": [{"type": "json", "json": "paid"}]}, "a part of the type 'json' cannot be read, and is shown as JSON"),
        ({"content": [None]}, "a part without a type cannot be read"),
        ({"content": [{"type": "image", "data": "?", "mimeType": "image/png"}]}, "the image is not of the type that it names"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_of_a_result_is_said_and_that_the_call_ran(result: Any, says: str) -> None:
    text = result_text(parsed_result(result, "2025-06-18"))
    assert f"[The call ran. Of its result, not all is as the protocol says: {says}" in text


def test_a_question_of_a_server_is_no_result() -> None:
    asks = {"resultType": "input_required", "inputRequests": {}, "requestState": "s"}
    assert readable_result(asks, "2026-07-28") is asks


@pytest.mark.parametrize(
    ("sent", "messages"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', [{"id": 1, "result": {}}]),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"result":{}}', [{"id": 1, "result": {}}]),
        (b'{"id":1,"result":{}}', [{"id": 1, "result": {}}]),
        (b'{"jsonrpc":"2.0","id":1.0,"result":"a"}', [{"id": 1, "result": {ANY_VALUE: "a"}}]),
        (b'{"jsonrpc":"2.0","id":1,"error":"no"}', [{"id": 1, "error": {"code": -32603, "message": "no", "data": None}}]),
        (b'{"jsonrpc":"2.0","id":1,"result":{"t":"a\x01\xff\\ud800"}}', [{"id": 1, "result": {"t": "a\x01��"}}]),
        (b'[{"jsonrpc":"2.0","id":1,"result":{}},{"id":2,"result":{}}]', [{"id": 1, "result": {}}, {"id": 2, "result": {}}]),
        (b'{"jsonrpc":"2.0","method":"x","params":[]}', [{"method": "x"}]),
        (b"{not json", []),
        (b'{"level":"info","id":3}', []),
        (b"[1, 2]", []),
        (b"Starting \xff", []),
        (b"", []),
    ],
)  # fmt: skip
def test_messages_are_read_whatever_their_form_is(sent: bytes, messages: list[dict[str, Any]]) -> None:
    lines = readable_messages(sent)
    assert [json.loads(line.removeprefix("\ufeff")) for line in lines] == [
        {"jsonrpc": "2.0"} | each for each in messages
    ]
    assert [jsonrpc_message_adapter.validate_json(line) for line in lines]  == [
        jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0"} | each) for each in messages
    ]  # fmt: skip


@pytest.mark.parametrize(
    "sent",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"te',
        b'{"jsonrpc":"2.0","id":1,"result":{{}}}',
        b'{"result":{{},"id":1}',
        b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 100_000,
        b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 300 + b"]" * 300 + b"}",
    ],
)
def test_an_answer_that_cannot_be_read_ends_its_request_and_shows_how_it_begins(sent: bytes) -> None:
    [line] = readable_messages(sent)
    answer = json.loads(line)
    assert (answer["id"], answer["error"]["data"]) == (1, IS_UNREADABLE)
    assert f"It begins with: {sent[:20].decode()}" in answer["error"]["message"]
    assert len(line) < 5_000


def test_an_http_response_answers_its_request_whatever_it_is() -> None:
    [line] = readable_messages(b'{"jsonrpc":"2.0","id":9,"result":{"a":1}}', 4)
    assert json.loads(line) == {"jsonrpc": "2.0", "id": 4, "result": {"a": 1}}
    for body, says in ((b"", "it is empty"), (b"<html>", "Expecting value"), (b"5", "not a message of the protocol")):
        [line] = readable_messages(body, 4)
        assert json.loads(line)["id"] == 4
        assert says in json.loads(line)["error"]["message"]


class Sent:
    """What a server sends, one message after the other; and what is sent to it."""

    def __init__(self, *lines: bytes) -> None:
        self.items = [
            SessionMessage(jsonrpc_message_adapter.validate_json(line))
            for sent in lines
            for line in readable_messages(sent)
        ]
        self.sent: list[Any] = []

    async def receive(self) -> SessionMessage:
        return self.items.pop(0)

    async def send(self, item: SessionMessage) -> None:
        self.sent.append(item)


async def answers(requests: dict[int, str], *lines: bytes, version: str | None = None) -> list[Any]:
    """The answers that the SDK gets of these lines, while these requests are open."""
    server = Sent(*lines, b'{"jsonrpc":"2.0","method":"the/end"}')
    read, write = readable_streams(server, server)
    for number, method in requests.items():
        params = {"_meta": {PROTOCOL_VERSION_META_KEY: version}} if version else None
        await write.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params=params)))
    answered: list[Any] = []
    while isinstance(message := (await read.receive()).message, JSONRPCResponse | JSONRPCError):
        answered.append(message)
    return answered


async def answered(requests: dict[int, str], *lines: bytes) -> list[Any]:
    """Which requests these lines answer."""
    return [answer.id for answer in await answers(requests, *lines)]


async def test_an_answer_without_an_id_belongs_to_the_request_that_it_can_belong_to() -> None:
    """Some servers answer notifications, which have no id: such an answer ends no request."""
    noise = [
        b'{"jsonrpc":"2.0","id":null,"result":{}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"no"}}',
    ]
    assert await answered({1: "tools/call"}, noise[0], b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}') == [1]
    assert await answered({1: "tools/list"}, noise[1], b'{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}') == [1]
    assert await answered({1: "tools/list", 2: "tools/call"}, b'{"jsonrpc":"2.0","result":{"content":[]}}') == [2]
    assert await answered({1: "tools/call"}, b'{"jsonrpc":"2.0","result":{{}') == [1]
    # One of two: known once the other is answered.
    unread, other = b'{"jsonrpc":"2.0","result":{{}', b'{"jsonrpc":"2.0","id":2,"result":{"content":[]}}'
    assert await answered({1: "tools/call", 2: "tools/call"}, unread) == []
    assert await answered({1: "tools/call", 2: "tools/call"}, unread, other) == [2, 1]


async def test_each_result_is_read_by_the_version_of_its_request() -> None:
    sent = b'{"jsonrpc":"2.0","id":1,"result":{"structuredContent":["paid"]}}'
    [new] = await answers({1: "tools/call"}, sent, version="2026-07-28")
    [old] = await answers({1: "tools/call"}, sent)
    assert (new.result["structuredContent"], new.result["content"]) == (["paid"], [])
    assert ("structuredContent" in old.result, old.result["content"][0]["text"]) == (False, '["paid"]')


async def test_an_error_of_a_server_is_not_taken_for_a_closed_connection() -> None:
    """Its code is one that the SDK gives that meaning."""
    [error] = await answers({1: "tools/call"}, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"full"}}')
    assert (error.error.code, error.error.message) == (-32_603, "full")


def test_events_keep_their_other_fields_and_noise_is_left_out() -> None:
    message = b'{"jsonrpc":"2.0","id":1,"result":{}}'
    whole = b"event: message\r\nid: 5\r\ndata: " + message
    assert readable_event(whole).splitlines()[:3] == whole.splitlines()
    assert readable_event(b": comment") == b": comment\n\n"
    assert readable_event(b"event: ping\ndata: {}") == b"event: ping\ndata: {}\n\n"
    assert readable_event(b"id: 6\ndata: ping") == b"id: 6\ndata: \n\n"
    assert readable_event(b"data: [" + message + b"]").count(b"data: {") == 1
    assert b'"mulligan/nameless"' in readable_event(b'data: {"result":\ndata: {},"jsonrpc":"2.0"}')
    assert NAMELESS == "mulligan/nameless"


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
async def test_events_are_found_wherever_the_server_cuts_its_stream(size: int) -> None:
    class Chunks:
        async def __aiter__(self) -> Any:
            for at in range(0, len(text), size):
                yield text[at : at + size]

    text = b"data: 1\r\n\r\n: x\n\ndata: [\ndata: 2]\n\ndata: " + b"y" * 200 + b"\n\nrest"
    chunks: Any = Chunks()
    assert (
        b"".join([piece async for piece in ReadableEvents(chunks, 10_000)])
        == b"data: \n\n: x\n\ndata: \n\ndata: \n\nrest"
    )
    passed_on = b"".join([piece async for piece in ReadableEvents(chunks, 100)])
    assert passed_on.endswith(b"y" * 200 + b"\n\nrest") or size == 10_000
