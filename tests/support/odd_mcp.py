"""MCP servers that are odd in every way that was seen: sessions that they forget, tool definitions, results, answers.

All is drawn from one `Random`. It imports nothing of Mulligan. `odd_mcp.py SEED FILE` is such a server over stdin and stdout;
each call that it executes leaves a line in the file. `OddServer` is one over HTTP, in this process.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

AMOUNT = {"type": "object", "properties": {"n": {"type": "integer"}}}
PAY = {"name": "pay", "inputSchema": AMOUNT}

Way = tuple[int, str, str]
"""How a server says that it does not know a session: the status, what it writes, and how: `error`, `text` or `stream`."""
WAYS: list[Way] = [
    *((status, "", "text") for status in (400, 401, 404, 410, 500, 503)),
    (400, "Bad Request: No valid session ID provided", "error"),
    (400, "Bad Request: Server not initialized", "error"),
    (400, "Invalid session ID", "text"),
    (401, "session expired", "error"),
    (404, "Session not found", "error"),
    (404, "<h1>Not found</h1>", "text"),
    (410, "gone", "text"),
    (500, "the session is gone", "error"),
    (503, "unknown session", "error"),
    (200, "Session not found", "error"),
    (200, "Unknown session: please initialize", "error"),
    (200, "Received request before initialization was complete", "error"),
    (200, "Session has expired", "stream"),
]

READABLE: list[Callable[[dict[str, Any]], Any]] = [
    lambda tool: tool.pop("inputSchema"),
    lambda tool: tool.update(inputSchema={}),
    lambda tool: tool.update(inputSchema=None),
    lambda tool: tool.update(inputSchema=[]),
    lambda tool: tool.update(inputSchema=True),
    lambda tool: tool.update(inputSchema={"type": "object", "properties": []}),
    lambda tool: tool.update(inputSchema={"type": "object", "properties": None, "required": None}),
    lambda tool: tool.update(inputSchema={"properties": {"a": {"type": "object", "properties": []}}}),
    lambda tool: tool.update(inputSchema={"type": ["object", "null"]}),
    lambda tool: tool.update(inputSchema={"$ref": "#/$defs/In", "$defs": {"In": AMOUNT}}),
    lambda tool: tool.update(inputSchema={"type": "object", "properties": {"any": True}}),
    lambda tool: tool.update(description=["a"]),
    lambda tool: tool.update(description=5, title={}, annotations="x", icons=5, execution=[], _meta=3),
    lambda tool: tool.update(outputSchema="none"),
    lambda tool: tool.update(outputSchema={"type": 5}, annotations={"readOnlyHint": "yes"}),
]
UNREADABLE: list[Callable[[dict[str, Any]], Any]] = [
    lambda tool: tool.update(inputSchema="none"),
    lambda tool: tool.update(inputSchema=[1]),
    lambda tool: tool.update(inputSchema={"type": "string"}),
    lambda tool: tool.update(inputSchema={"type": "object", "properties": {"a": "text"}}),
    lambda tool: tool.update(inputSchema={"type": "object", "properties": 5}),
    lambda tool: tool.update(inputSchema={"type": "object", "properties": {"a": {"type": "nonsense"}}}),
    lambda tool: tool.update(inputSchema={"type": "object", "required": "a"}),
]
NAMELESS: list[Any] = [{}, {"name": 5}, {"name": ""}, "tool", None, 7, []]


def text(words: Any) -> dict[str, Any]:
    return {"type": "text", "text": words}


RESULTS: list[Callable[[str], Any]] = [
    lambda mark: {"content": [text(mark)]},
    lambda mark: {"content": [text(mark)], "structuredContent": {"n": "many"}},
    lambda mark: {"content": mark},
    lambda mark: {"content": [mark]},
    lambda mark: {"content": text(mark)},
    lambda mark: {"structuredContent": {"order": mark}},
    lambda mark: {"structuredContent": [mark]},
    lambda mark: {"content": None, "structuredContent": mark},
    lambda mark: {"content": [{**text(mark), "annotations": {"priority": 5}, "_meta": 3}]},
    lambda mark: {"content": [{"text": mark}]},
    lambda mark: {"content": [text({"order": mark})]},
    lambda mark: {"content": [{"type": "json", "json": {"order": mark}}]},
    lambda mark: {"content": [5, None, text(mark)]},
    lambda mark: {"content": [{"type": "resource_link", "uri": "a", "name": mark, "size": "big"}]},
    lambda mark: {"content": [{"type": "resource_link", "uri": mark}]},
    lambda mark: {"content": [{"type": "resource", "resource": {"text": mark}}]},
    lambda mark: {"content": [{"type": "image", "data": "?"}, text(mark)], "isError": "false"},
    lambda mark: {"toolResult": mark},
    lambda mark: {"order": mark},
    lambda mark: mark,
    lambda mark: [text(mark)],
    lambda mark: {"content": [text(mark)], "isError": True, "structuredContent": {"error": 5}},
]


def odd_tools(chance: random.Random) -> tuple[list[Any], set[str], set[str]]:
    """Definitions in a random order; the names of those that can be read, and of those that cannot."""
    readable, unreadable = {"pay"}, set[str]()
    tools: list[Any] = [PAY]
    for kinds, names in ((READABLE, readable), (UNREADABLE, unreadable)):
        for change in chance.sample(kinds, chance.randint(0, 4)):
            tool: dict[str, Any] = {"name": f"tool{len(tools)}", "inputSchema": copy.deepcopy(AMOUNT)}
            change(tool)
            tools.append(tool)
            names.add(tool["name"])
    tools += chance.sample(NAMELESS, chance.randint(0, 2))
    chance.shuffle(tools)
    return tools, readable, unreadable


def page_of(tools: list[Any], cursor: Any, chance: random.Random) -> dict[str, Any]:
    """A page of two tools. At the end there is no cursor, an empty one, or one that was there before."""
    at = int(cursor or 0)
    more = {"nextCursor": chance.choice([str(at + 2), at + 2])} if at + 2 < len(tools) else {}
    ends: list[dict[str, Any]] = [{}, {"nextCursor": ""}, {"nextCursor": None}, {"nextCursor": "0"}, {"nextCursor": at}]
    return {"tools": tools[at : at + 2], **(more or chance.choice(ends))}


def hello() -> dict[str, Any]:
    info = {"name": "odd", "version": "1"}
    return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}


class OddServer:
    """A server over HTTP. `executed`: how often it has executed the call of each number."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.tools, self.readable, self.unreadable = odd_tools(self.chance)
        self.results = RESULTS
        self.executed: Counter[int] = Counter()
        self.sessions: set[str] = set()
        self.way = WAYS[0]
        self.breaks = ""
        """What goes wrong in the next call, after it was executed: `cut`, `500`, `stream`, `progress`."""
        self.url = ""

    def forget(self) -> None:
        """All sessions are forgotten, as after a restart; from now on, that is said in another way."""
        self.sessions.clear()
        self.way = self.chance.choice(WAYS)

    async def __aenter__(self) -> OddServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/mcp"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                headers = {}
                while header := (await reader.readline()).decode().strip():
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                message = json.loads(body) if line.startswith(b"POST") else None
                if not await self._answer(headers, message, writer):
                    break
        except ConnectionError:
            pass
        writer.close()

    async def _answer(self, headers: dict[str, str], message: Any, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection stays."""
        if message is None:
            return await self._send(writer, 405, b"", "text/plain")
        if message["method"] == "initialize":
            self.sessions.add(session := f"session-{self.chance.random()}")
            result = {"jsonrpc": "2.0", "id": message["id"], "result": hello()}
            return await self._send(writer, 200, json.dumps(result).encode(), "application/json", session)
        if headers.get("mcp-session-id") not in self.sessions:
            return await self._refuse(message.get("id"), writer)
        if "id" not in message:
            return await self._send(writer, 202, b"", "text/plain")
        if message["method"] == "tools/list":
            result = page_of(self.tools, (message.get("params") or {}).get("cursor"), self.chance)
            return await self._send_result(writer, message["id"], result)
        number = message["params"]["arguments"]["n"]
        self.executed[number] += 1
        if self.breaks:
            return await self._break(message, writer)
        return await self._send_result(writer, message["id"], self.chance.choice(self.results)(f"paid-{number}"))

    async def _refuse(self, request_id: Any, writer: asyncio.StreamWriter) -> bool:
        status, words, form = self.way
        if form == "text":
            return await self._send(writer, status, words.encode(), "text/plain")
        named = request_id if status == 200 else None
        error = {"jsonrpc": "2.0", "id": named, "error": {"code": -32000, "message": words}}
        whole = json.dumps(error).encode()
        if form == "stream":
            return await self._send(writer, status, b"data: " + whole + b"\n\n", "text/event-stream")
        return await self._send(writer, status, whole, "application/json")

    async def _send_result(self, writer: asyncio.StreamWriter, request_id: Any, result: Any) -> bool:
        whole = json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode()
        forms: list[tuple[bytes, str]] = [
            (whole, "application/json"),
            (whole, "text/plain"),
            (b"\xef\xbb\xbf" + whole, "application/json"),
            (b"[" + whole + b"]", "application/json"),
            (whole.replace(b'"jsonrpc": "2.0", ', b""), "application/json"),
            (whole.replace(f'"id": {request_id}'.encode(), b'"id": 999'), "application/json; charset=utf-8"),
            (b"event: message\r\ndata: " + whole + b"\r\n\r\n", "text/event-stream"),
            (b": hi\n\ndata: ping\n\ndata: [" + whole + b"]\n\n", "text/event-stream"),
        ]
        return await self._send(writer, 200, *self.chance.choice(forms))

    async def _break(self, message: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        """The call was executed; then its session is forgotten, and the call gets no result."""
        breaks, self.breaks = self.breaks, ""
        self.forget()
        if breaks == "500":
            return await self._send(writer, self.chance.choice([500, 502, 504]), b"the session is gone", "text/plain")
        if breaks == "cut":
            return False
        progress = {"progressToken": message["params"]["_meta"]["progressToken"], "progress": 1}
        noted = {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}
        error = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32001, "message": "Session not found"}}
        first = f"data: {json.dumps(noted)}\n\n" if breaks == "progress" else ""
        last = f"data: {json.dumps(error)}\n\n" if self.chance.random() < 0.5 else ""
        return await self._send(writer, 200, (first + last).encode(), "text/event-stream")

    async def _send(self, writer: Any, status: int, content: bytes, kind: str, session: str = "") -> bool:
        more = f"Mcp-Session-Id: {session}\r\n" if session else ""
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        await writer.drain()
        return True


def lines_of(answer: dict[str, Any], chance: random.Random) -> list[bytes]:
    """An answer as lines. The call that it answers has ended with them, also where they cannot be read."""
    whole = json.dumps(answer).encode()
    forms: list[list[bytes]] = [
        [whole],
        [b"\xef\xbb\xbf" + whole],
        [b"[" + whole + b"]"],
        [whole.replace(b'"jsonrpc": "2.0", ', b"")],
        [whole.replace(b'"id": ', b'"id": "').replace(b', "result"', b'", "result"')],
        [whole.replace(b', "result"', b'.0, "result"')],
        [whole.replace(b'"result": {', b'"result": {"ratio": NaN, ')],
        [whole.replace(b"paid", b"paid\\ud800\xff\x01paid")],
        [b"{not json", b'{"level": "info"}', whole, b"done"],
        [whole.replace(f'"id": {answer["id"]}'.encode(), b'"id": null')],
        [whole[:-1]],
        [whole.replace(b'"result": {', b'"result": {{')],
    ]
    return chance.choice(forms)


def main(seed: int, file: Path) -> None:
    """Serve stdin and stdout. A server that has forgotten its session refuses all until it is started again."""
    chance = random.Random(f"{seed} {file.read_text() if file.exists() else ''}")
    tools, _, _ = odd_tools(random.Random(seed))
    is_forgotten = False
    for line in sys.stdin:
        message = json.loads(line)
        method = message["method"]
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message.get("id")}
        if is_forgotten and method != "initialize" and "id" in message:
            answer["error"] = {"code": -32000, "message": "Session not found"}
        elif method == "initialize":
            answer["result"] = hello()
        elif method == "tools/list":
            answer["result"] = page_of(tools, (message.get("params") or {}).get("cursor"), chance)
        elif method == "tools/call":
            number = message["params"]["arguments"]["n"]
            with file.open("a") as written:
                written.write(f"{number}\n")
            answer["result"] = chance.choice([result for result in RESULTS if "isError" not in str(result("a"))])(
                f"paid-{number}"
            )
            is_forgotten = chance.random() < 0.3
        elif "id" in message:
            answer["error"] = {"code": -32601, "message": "Method not found"}
        else:
            continue
        is_odd = method == "tools/call" and "result" in answer
        for each in lines_of(answer, chance) if is_odd else [json.dumps(answer).encode()]:
            sys.stdout.buffer.write(each + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
