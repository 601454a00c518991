"""Anthropic's Messages API for a client that is tried: it writes scripted turns, and accepts whatever it is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.anthropic_api import AnthropicApi
from tests.support.openai_turn import Turn


@asynccontextmanager
async def lenient_anthropic(turns: Sequence[Turn]) -> AsyncIterator[str]:
    """The base URL of the API. A request with tools gets the turn after those in its conversation, any other a text."""
    api = AnthropicApi()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            turn = turns[api.nth(body)] if body.get("tools") else Turn("A title")
            reply = api.reply(turn, self.path, body, "seed")
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream" if body.get("stream") else "application/json")
            self.end_headers()
            if body.get("stream"):
                frames = [each for each in api.events(turn, reply, "seed") if isinstance(each, dict)]
                text = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in frames)
                self.wfile.write(text.encode())
            else:
                self.wfile.write(json.dumps(reply).encode())

        def log_message(self, *_: Any) -> None:
            """It would be printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = asyncio.create_task(asyncio.to_thread(server.serve_forever))
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        await asyncio.to_thread(server.shutdown)
        await serving
        server.server_close()
