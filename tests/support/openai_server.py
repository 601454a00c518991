"""A server of OpenAI's, Anthropic's and Google's APIs on the loopback, with scripted answers and strict checks of requests.

    async with OpenAIServer() as server:
        server.script("gpt-test", [Turn(calls=[("search", '{"q": "x"}')]), Turn("Found it.")])
        client = AsyncOpenAI(base_url=server.base_url, api_key="test", max_retries=0)
        ...
        assert server.refusals == []

The turn is chosen by the number of assistant turns in the request, so that retries and concurrent runs need no state.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.anthropic_api import AnthropicApi
from tests.support.background_responses import BackgroundResponses
from tests.support.bedrock_api import BedrockApi
from tests.support.google_api import GoogleApi
from tests.support.openai_shapes import Refusal
from tests.support.openai_stream import Event, chat_events, response_events, stream
from tests.support.openai_turn import Call, Failure, Reasoning, Turn, Usage, chat_reply, made_up, responses_reply
from tests.support.signed_ids import signed, unsigned
from tests.support.zoo.member import Member
from tests.support.zoo.openai_chat_rules import LONGEST_ID, check_chat
from tests.support.zoo.openai_responses_rules import ENCRYPTED, check_responses, is_of_model
from tests.support.zoo.openai_rules import check_authorization, parse_body

__all__ = ["Call", "Failure", "OpenAIServer", "Reasoning", "Recorded", "Refusal", "Turn", "Usage"]

Script = Sequence[Turn] | Callable[[dict[str, Any], int], Turn]
CHAT, RESPONSES, MODELS = "/v1/chat/completions", "/v1/responses", "/v1/models"
LARGEST_BODY = 256 * 1024 * 1024


@dataclass
class Recorded:
    """One received request and its outcome."""

    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    json: dict[str, Any] = field(default_factory=dict)  # empty if the body is not a JSON object
    status: int | None = None  # None: no response yet
    refusal: Refusal | None = None
    disconnected: bool = False  # the client disconnected before the response
    request_id: str = ""  # of the x-request-id header
    api: AnthropicApi | GoogleApi | BedrockApi | None = None  # None: OpenAI's
    stored: dict[str, Any] | None = None  # the background response that is read, cancelled or deleted
    done: asyncio.Event = field(
        default_factory=asyncio.Event
    )  # set when the request was answered, dropped or abandoned

    @property
    def model(self) -> str:
        """The model of the request."""
        if self.api is not None:
            return self.api.model(self.path, self.json)
        return str(self.json.get("model", ""))

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The messages or the input items."""
        if self.api is not None:
            return self.api.conversation(self.json)
        items = self.json.get("messages" if self.path == CHAT else "input")
        if isinstance(items, str):
            return [{"role": "user", "content": items}]
        return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []

    @property
    def nth(self) -> int:
        """The number of assistant turns in the request."""
        if self.api is not None:
            return self.api.nth(self.json)
        if self.path == CHAT:
            return sum(1 for message in self.conversation if message.get("role") == "assistant")
        # in the Responses API a turn is a sequence of items that the model wrote
        of_model = [False, *(is_of_model(item) for item in self.conversation)]
        return sum(1 for before, now in itertools.pairwise(of_model) if now and not before)

    @property
    def names(self) -> list[str]:
        """Everything that identifies the run: identifiers, metadata, the first prompt."""
        given = [self.json.get(name) for name in ("safety_identifier", "user", "prompt_cache_key")]
        metadata = self.json.get("metadata")
        values = list(metadata.values()) if isinstance(metadata, dict) else []
        return [name for name in (*given, *values, self.prompt) if isinstance(name, str) and name]

    @property
    def prompt(self) -> str:
        """The text of the first message of a user."""
        for item in self.conversation:
            if item.get("role") == "user":
                content = item.get("content")
                parts = content if isinstance(content, list) else [{"text": content}]
                return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
        return ""

    @property
    def seed(self) -> str:
        """A key that is equal for all attempts of the same step of the same run."""
        return made_up("", self.path, self.model, self.names, self.conversation)


class OpenAIServer:
    """The server; `async with` starts it and stops it. `port`: 0: a free one."""

    def __init__(self, longest_chat_id: int = LONGEST_ID, port: int = 0) -> None:
        self.requests: list[Recorded] = []
        self.longest_chat_id = longest_chat_id
        self._port = port
        self.takes_reasoning_content = False  # as DeepSeek's server, in chat messages of the assistant
        self.base_url = ""
        self.members: dict[str, Member] = {}
        """The servers that models of Chat Completions are at; OpenAI's own where there is none."""
        self.signs_ids: set[str] = set()
        """The models at a gateway that has signatures in the ids of calls (`signed_ids`)."""
        self.background = BackgroundResponses()
        self.anthropic = AnthropicApi()
        self.google = GoogleApi()
        self.bedrock = BedrockApi()
        self._scripts: dict[str, Script] = {}
        self._attempts: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._arrival = asyncio.Condition()
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        # a client that disconnects cancels its handler: the test can see it, and nothing waits for ever
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)

    async def __aenter__(self) -> OpenAIServer:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        host, port = self._runner.addresses[0][:2]
        self.base_url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def script(self, model: str, script: Script) -> None:
        """Set the answers of a model: turns, or a function of the request's JSON and the number of the turn (from 0)."""
        self._scripts[model] = script

    def environment(self) -> dict[str, str]:
        """The environment with which a worker process uses this server."""
        root = self.base_url.removesuffix("/v1")
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": "test-key",
            "ANTHROPIC_BASE_URL": root,
            "ANTHROPIC_API_KEY": "test-key",
            "GOOGLE_GEMINI_BASE_URL": root,
            "GEMINI_API_KEY": "test-key",
        }

    @property
    def refusals(self) -> list[Refusal]:
        """The refusals so far. A good test ends with `assert server.refusals == []`."""
        return [request.refusal for request in self.requests if request.refusal]

    def requests_of(self, model: str | None = None, run: str | None = None) -> list[Recorded]:
        """The requests for a model and of a run, which has this safety_identifier, user, metadata value or first prompt."""
        return [
            request
            for request in self.requests
            if (model is None or request.model == model) and (run is None or run in request.names)
        ]

    async def wait_for_requests(self, count: int, model: str | None = None, run: str | None = None) -> list[Recorded]:
        """Wait until that many requests have arrived; they need not be answered."""
        async with self._arrival:
            await self._arrival.wait_for(lambda: len(self.requests_of(model, run)) >= count)
        return self.requests_of(model, run)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        recorded = Recorded(request.path, headers, await request.read())
        recorded.request_id = made_up("req_", next(self._numbers))
        # checked before waiters are notified, so that a test never sees an incomplete record
        recorded.refusal = self._examine(request.method, recorded)
        self.requests.append(recorded)
        async with self._arrival:
            self._arrival.notify_all()
        try:
            if recorded.refusal is None and recorded.api is self.google and not recorded.model:
                return self._send(recorded, 200, {"models": [{"name": f"models/{name}"} for name in self._scripts]})
            if recorded.refusal is None and recorded.path == MODELS:
                listed = [{"id": name, "object": "model", "created": 1, "owned_by": "tests"} for name in self._scripts]
                return self._send(recorded, 200, {"object": "list", "data": listed})
            if recorded.refusal is None and recorded.stored is not None:
                hold = self.background.hold_reads if request.method == "GET" else self.background.hold_ends
                if hold is not None:
                    await hold.wait()
                if streamed := self.background.streamed(request.method, recorded.stored["id"], request.query):
                    recorded.status = 200
                    return await self.background.stream(request, *streamed)
                return self._send(recorded, 200, recorded.stored)
            if recorded.refusal is None:
                return await self._answer(request, recorded, self._turn(recorded))
        except Refusal as late:
            recorded.refusal = late
        except asyncio.CancelledError:
            recorded.disconnected = True
            raise
        finally:
            recorded.done.set()
        refusal = recorded.refusal
        body = recorded.api.error(refusal.message, refusal.status) if recorded.api else refusal.body()
        return self._send(recorded, refusal.status, body)

    def _examine(self, method: str, recorded: Recorded) -> Refusal | None:
        try:
            others = (self.anthropic, self.google, self.bedrock)
            recorded.api = next((api for api in others if api.serves(recorded.path, recorded.headers)), None)
            if recorded.api is not None:
                if method == "POST":
                    self._parse(recorded)
                recorded.api.check(recorded.path, recorded.headers, recorded.json)
                return None
            check_authorization(recorded.headers.get("authorization"))
            if (method, recorded.path) == ("GET", MODELS):
                return None
            if recorded.path.startswith(f"{RESPONSES}/"):
                recorded.stored = self.background.handle(method, recorded.path)
                if recorded.stored is not None:
                    return None
            if method != "POST" or recorded.path not in (CHAT, RESPONSES):
                raise Refusal(f"Invalid URL ({method} {recorded.path})", None, None, 404)
            self._parse(recorded)
            if not recorded.headers.get("content-type", "").startswith("application/json"):
                raise Refusal("Invalid content type. Expected application/json.", None, "unsupported_content_type")
            if recorded.path == CHAT and recorded.model in self.members:
                self.members[recorded.model].check(recorded.json)
            elif recorded.path == CHAT:
                check_chat(self._known_to_openai(recorded.json), self.longest_chat_id)
            else:
                check_responses(recorded.json)
        except Refusal as refusal:
            return refusal
        return None

    def _parse(self, recorded: Recorded) -> None:
        """Read the body of a request as the rules of its API see it."""
        body = parse_body(recorded.body)
        recorded.json = self.google.body(body) if recorded.api is self.google else body
        if recorded.model in self.signs_ids:
            recorded.json = unsigned(recorded.json)

    def _known_to_openai(self, body: dict[str, Any]) -> dict[str, Any]:
        """The request without the field of compatible servers, if this is one of them."""
        messages = body.get("messages")
        if not self.takes_reasoning_content or not isinstance(messages, list):
            return body
        return {
            **body,
            "messages": [{name: each[name] for name in each if name != "reasoning_content"} for each in messages],
        }

    def _turn(self, recorded: Recorded) -> Turn:
        script, nth = self._scripts.get(recorded.model), recorded.nth
        if script is None:
            told = f"The model `{recorded.model}` does not exist or you do not have access to it."
            raise Refusal(told, None, "model_not_found", 404)
        if callable(script):
            try:
                return script(recorded.json, nth)
            except Exception as error:
                # not a 500, which the client would retry
                raise Refusal(f"The script raised {error!r}.", None, "script_raised") from error
        if nth >= len(script):
            told = f"The script of `{recorded.model}` has {len(script)} turns, turn {nth + 1} was asked for."
            raise Refusal(told, None, "script_exhausted")
        return script[nth]

    async def _answer(self, request: web.Request, recorded: Recorded, turn: Turn) -> web.StreamResponse:
        seed = recorded.seed
        attempt = self._attempts[seed]
        self._attempts[seed] += 1
        failure = turn.fail_first[attempt] if attempt < len(turn.fail_first) else turn.failure
        is_background = recorded.path == RESPONSES and recorded.json.get("background")
        if failure is not None or not is_background:
            await hold(failure or turn)
        if failure is not None:
            return await self._fail(request, recorded, failure)
        api = recorded.api
        is_streamed = api.is_streamed(recorded.path, recorded.json) if api else bool(recorded.json.get("stream"))
        if is_streamed and turn.whole_only:
            raise Refusal(
                "Unsupported value: 'stream' does not support true with this model.", "stream", "unsupported_value"
            )
        headers = {"x-request-id": recorded.request_id, "request-id": recorded.request_id}
        broken = turn.break_first[attempt] if attempt < len(turn.break_first) else None
        if api is not None:
            reply = api.reply(turn, recorded.path, recorded.json, seed)
            reply = signed(reply) if recorded.model in self.signs_ids else reply
            if not is_streamed:
                return self._send(recorded, 200, reply)
            recorded.status = 200
            sent: Sequence[Event] = api.events(turn, reply, seed) if turn.events is None else turn.events
            return await stream(request, headers, sent, turn.pace, broken, turn.gates)
        is_chat = recorded.path == CHAT
        if not is_chat and turn.reasoning and ENCRYPTED not in (recorded.json.get("include") or []):
            told = f"Invalid 'include': '{ENCRYPTED}' must be asked for, or the reasoning would be lost."
            raise Refusal(told, "include", "invalid_value")
        if is_background:
            created = self.background.create(turn, recorded.json, recorded.headers, seed)
            if self.background.hold is not None:
                await self.background.hold.wait()
            if is_streamed:
                recorded.status = 200
                return await self.background.stream(request, created)
            return self._send(recorded, 200, created.as_json())
        reply = chat_reply(turn, recorded.json, seed) if is_chat else responses_reply(turn, recorded.json, seed)
        member = self.members.get(recorded.model)
        reply = member.answers(reply) if member else reply
        reply = signed(reply) if recorded.model in self.signs_ids else reply
        if not is_streamed:
            return self._send(recorded, 200, reply)
        recorded.status = 200
        usage = bool((recorded.json.get("stream_options") or {}).get("include_usage"))
        events: Sequence[Event] = chat_events(reply, with_usage=usage) if is_chat else response_events(reply)
        events = member.streams(reply) if member else events
        written = events if turn.events is None else turn.events
        return await stream(request, headers, written, turn.pace, broken, turn.gates)

    async def _fail(self, request: web.Request, recorded: Recorded, failure: Failure) -> web.StreamResponse:
        if failure.drop == "before":
            return self._drop(request)
        if isinstance(failure.body, str):
            content = {"Content-Type": "text/html; charset=utf-8", **failure.headers}
            payload: bytes = failure.body.encode()
        else:
            content = {"Content-Type": "application/json", **failure.headers}
            is_others = recorded.api is not None and failure.body is None
            told = f"scripted failure {failure.status}"
            body = recorded.api.error(told, failure.status) if recorded.api and is_others else failure.json()
            payload = json.dumps(body).encode()
        if failure.drop == "in_body":
            cut = web.StreamResponse(headers={**content, "Content-Length": str(2 * len(payload))})
            await cut.prepare(request)
            await cut.write(payload)
            return self._drop(request)
        recorded.status = failure.status
        headers = {"x-request-id": recorded.request_id, "request-id": recorded.request_id, **content}
        return web.Response(status=failure.status, headers=headers, body=payload)

    def _drop(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.close()  # what was written so far is still sent
        return web.Response()  # is not sent

    def _send(self, recorded: Recorded, status: int, payload: Mapping[str, Any]) -> web.StreamResponse:
        recorded.status = status
        headers = {"x-request-id": recorded.request_id}
        return web.json_response(payload, status=status, headers=headers)


async def hold(answer: Turn | Failure) -> None:
    """Wait as long as the script says."""
    if answer.delay:
        await asyncio.sleep(answer.delay)
    if answer.wait is not None:
        await answer.wait.wait()
