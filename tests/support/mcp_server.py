"""A real MCP server, built with the official SDK: `mcp_server.py` uses stdin and stdout, `mcp_server.py PORT` Streamable HTTP.

It imports nothing of Mulligan, so it sees what any server would see. With `--sessions` it does not know `server/discover`, like
servers before 2026, and therefore keeps a session for each client. With `--token` it requires the header of the tests.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server

PAGE = 4
NONE: dict[str, Any] = {"type": "object", "properties": {}}


def schema(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


TEXT = {"type": "string"}
TOOLS: dict[str, dict[str, Any]] = {
    "echo": schema(text=TEXT),
    "count": schema(upto={"type": "integer", "minimum": 1}),
    "structured": NONE,
    "picture": NONE,
    "mixed": NONE,
    "huge": schema(chars={"type": "integer"}),
    "fail": NONE,
    "nothing": NONE,
    "refuse": NONE,
    "wrong": NONE,
    "hang": schema(file=TEXT),
    "die": NONE,
    "die_once": schema(file=TEXT),
    "environment": NONE,
    "pid": NONE,
    "trace": NONE,
    "grow": NONE,
    "progress": NONE,
    "sleep": schema(seconds={"type": "number"}),
    "files.delete/all": NONE,
    # JSON Schema and JavaScript allow it, but providers refuse it.
    "odd": {
        "type": "object",
        "$schema": "http://json-schema.org/draft-07/schema#",
        "anyOf": [
            {"properties": {"id": {"type": "string", "pattern": "^\\p{L}+$"}}, "required": ["id"]},
            {"properties": {"ids": {"type": "array"}}, "required": ["ids"]},
        ],
    },
    "no_schema": {"type": "object", "properties": {"a": {"type": "nonsense"}}},
}


if os.environ.get("ASKS"):
    TOOLS |= {"book": schema(city=TEXT), "open_page": NONE, "endless": NONE}

GIVEN: dict[str, dict[str, Any]] = (
    json.loads(Path(os.environ["SCHEMAS"]).read_text()) if "SCHEMAS" in os.environ else {}
)
"""Tools of given schemas, which return their arguments."""
TOOLS |= GIVEN

for number in range(int(os.environ.get("MANY", "0"))):
    TOOLS[f"many_{number}"] = schema(text={**TEXT, "description": "y" * int(os.environ.get("LONG", "0"))})


def text(content: str, *, wrong: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=content)], is_error=wrong)


def base64_of(length: int) -> str:
    return base64.b64encode(b"x" * length).decode()


async def list_tools(_: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    at = int(params.cursor) if params and params.cursor else 0
    output = {"wrong": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}
    page = [
        types.Tool(
            name=name,
            description=taken.get("description", f"Does {name}."),
            input_schema=taken,
            output_schema=output.get(name),
        )
        for name, taken in list(TOOLS.items())[at : at + PAGE]
    ]
    more = str(at + PAGE) if at + PAGE < len(TOOLS) else None
    return types.ListToolsResult(tools=page, next_cursor=more)


def mixed_content() -> types.CallToolResult:
    """One content of each kind, with a structured result."""
    blob = types.BlobResourceContents(uri="file:///a.pdf", mime_type="application/pdf", blob=base64_of(10))
    page = types.TextResourceContents(uri="file:///b.md", mime_type="text/markdown", text="# B")
    return types.CallToolResult(
        content=[
            types.TextContent(text="Two files."),
            types.EmbeddedResource(resource=blob),
            types.EmbeddedResource(resource=page),
            types.ResourceLink(uri="file:///c.txt", name="c"),
            types.AudioContent(data=base64_of(2), mime_type="audio/wav"),
        ],
        structured_content={"files": 2},
    )


def picture() -> types.CallToolResult:
    return types.CallToolResult(content=[types.ImageContent(data=base64_of(12_345), mime_type="image/png")])


def structured(content: dict[str, Any]) -> types.CallToolResult:
    return types.CallToolResult(content=[], structured_content=content)


def refuse() -> types.CallToolResult:
    raise ValueError("not today")


def die() -> types.CallToolResult:
    os._exit(3)


def die_once(file: Path) -> types.CallToolResult:
    """The first call ends the process; the next one, which finds the file, gets a result."""
    if not file.exists():
        file.touch()
        os._exit(3)
    return text("second life")


def grow() -> types.CallToolResult:
    """Change the list of tools: one disappears, another appears."""
    TOOLS.pop("structured", None)
    TOOLS["grown"] = NONE
    return text("grown")


def sleep(seconds: float) -> types.CallToolResult:
    """Block the event loop, so that the server does not even read the end of its stdin."""
    time.sleep(seconds)
    return text("slept")


async def hang(file: Path) -> types.CallToolResult:
    file.write_text("started")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        file.write_text("cancelled")
        raise
    return text("never")


async def progress(ctx: Any) -> types.CallToolResult:
    for n in (1, 2, 3):
        await ctx.session.report_progress(n, 3, f"part {n}")
    return text("all parts")


Arguments = dict[str, Any]
RESULTS: dict[str, Callable[[Arguments], types.CallToolResult]] = {
    "echo": lambda given: text(given["text"]),
    "count": lambda given: text(", ".join(str(n + 1) for n in range(given["upto"]))),
    "structured": lambda _: structured({"sum": 3, "unit": "€"}),
    "picture": lambda _: picture(),
    "mixed": lambda _: mixed_content(),
    "huge": lambda given: text("y" * given["chars"]),
    "fail": lambda _: text("The disk is full.", wrong=True),
    "nothing": lambda _: types.CallToolResult(content=[]),
    "refuse": lambda _: refuse(),
    "wrong": lambda _: structured({"n": "many"}),
    "die": lambda _: die(),
    "die_once": lambda given: die_once(Path(given["file"])),
    "environment": lambda _: text(json.dumps(dict(os.environ))),
    "pid": lambda _: text(str(os.getpid())),
    "grow": lambda _: grow(),
    "sleep": lambda given: sleep(given["seconds"]),
    "files.delete/all": lambda _: text("files.delete/all done"),
    "grown": lambda _: text("grown done"),
}
"""Tools that need nothing but their arguments, by name."""


BOOKING = {
    "type": "object",
    "properties": {
        "nights": {"type": "integer", "minimum": 1, "title": "How many nights?"},
        "breakfast": {"type": "boolean", "default": True},
    },
    "required": ["nights"],
}
BOOKINGS = os.environ.get("BOOKINGS", "")
"""The file in which each start of `book` leaves a line."""


def elicit(message: str, requested: dict[str, Any]) -> types.ElicitRequest:
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=requested))


def booked(city: str, reply: Any) -> types.CallToolResult:
    return text(f"{city}: {reply.action} {json.dumps(reply.content)}")


def note_start(what: str) -> None:
    if BOOKINGS:
        with Path(BOOKINGS).open("a") as file:
            file.write(f"{what}\n")


async def book(ctx: Any, params: types.CallToolRequestParams) -> Any:
    """Asks a person for how many nights: by the protocol of 2026, or within the call for an older client."""
    city = (params.arguments or {})["city"]
    message = f"Book a room in {city}?"
    if ctx.session.protocol_version < "2026":
        note_start("started")
        return booked(city, await ctx.session.elicit_form(message, BOOKING, ctx.request_id))
    if not params.input_responses:
        note_start("asked")
        return types.InputRequiredResult(input_requests={"stay": elicit(message, BOOKING)}, request_state="state-1")
    note_start(f"continued with {params.request_state}")
    return booked(city, params.input_responses["stay"])


async def open_page(ctx: Any, params: types.CallToolRequestParams) -> Any:
    """Asks a person to open a page."""
    if not params.input_responses:
        page = types.ElicitRequestURLParams(message="Sign in.", url="https://example.com/in", elicitation_id="1")
        return types.InputRequiredResult(input_requests={"page": types.ElicitRequest(params=page)})
    reply: Any = params.input_responses["page"]
    return text(f"page: {reply.action}")


async def endless(ctx: Any, params: types.CallToolRequestParams) -> Any:
    """Asks again and again."""
    once = {"type": "object", "properties": {"more": {"type": "boolean"}}, "required": ["more"]}
    number = int(params.request_state or 0) + 1
    return types.InputRequiredResult(
        input_requests={"more": elicit(f"More ({number})?", once)}, request_state=str(number)
    )


async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult | types.InputRequiredResult:
    given = params.arguments or {}
    if params.name in GIVEN:
        return text(json.dumps(given))
    if params.name in RESULTS:
        return RESULTS[params.name](given)
    if params.name in ASKING:
        result: types.CallToolResult | types.InputRequiredResult = await ASKING[params.name](ctx, params)
        return result
    match params.name:
        case "hang":
            return await hang(Path(given["file"]))
        case "trace":
            return text((ctx.meta or {}).get("traceparent", "none"))
        case "progress":
            return await progress(ctx)
    return text(f"there is no {params.name}", wrong=True)


ASKING: dict[str, Callable[..., Any]] = {"book": book, "open_page": open_page, "endless": endless}
"""Tools that ask people."""

server = Server("support", version="1", on_list_tools=list_tools, on_call_tool=call_tool)


def main(arguments: list[str]) -> None:
    ports = [int(argument) for argument in arguments if argument.isdigit()]
    if not ports:
        from mcp.server.stdio import stdio_server

        async def serve() -> None:
            async with stdio_server() as (read, write):
                await server.run(read, write, server.create_initialization_options())

        print("at your service", file=sys.stderr, flush=True)
        asyncio.run(serve())
        return
    import uvicorn

    app = server.streamable_http_app()

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", []))
        status = 0
        if "--sessions" in arguments and headers.get(b"mcp-method") == b"server/discover":
            status = 400
        if "--token" in arguments and headers.get(b"authorization") != b"Bearer sesame":
            status = 401
        if status and scope["type"] == "http":
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    uvicorn.run(guarded, host="127.0.0.1", port=ports[0], log_level="warning", timeout_graceful_shutdown=0)


if __name__ == "__main__":
    main(sys.argv[1:])
