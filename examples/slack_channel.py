"""`slack_channel`: an agent that people talk with in threads of a Slack channel.

Each thread is one workflow, open for months: a message is a signal to it, and starts it if it is the first. Temporal keeps
it even while no worker runs. People may add messages with `mulligan send` and in the console, too (`send_message`). A
message that Slack sends again is answered once. Needs the extra `serve`. Create an app in Slack with an incoming webhook,
and subscribe it to `app_mention` and `message.im`, with the request URL https://YOUR-HOST/slack/events. The model is
scripted, so it runs without a key:

    export SLACK_SIGNING_SECRET=… SLACK_WEBHOOK_URL=https://hooks.slack.com/services/…
    uv run mulligan worker --load examples.slack_channel
    uv run python -m examples.slack_channel          # http://127.0.0.1:8400/slack/events
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from temporalio import activity, workflow
from temporalio.common import RetryPolicy

from mulligan import Agent, DurableAgent, MulliganError, Say, Script, connect

TOO_OLD = 300
"""Seconds after which a request is refused, as Slack recommends: somebody may have recorded it."""
MAX_BODY = 100_000
NEWEST = 200
"""Messages whose ids a thread remembers. Slack sends an event again for an hour or so."""

helper = Agent(name="helper", model="scripted:helper", instructions="You help the people of a channel. Be brief.")


@activity.defn
async def post_answer(thread: str, text: str) -> None:
    """Post an answer into a thread, by the channel's incoming webhook."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")  # no <!channel> of a model's
    async with httpx2.AsyncClient(timeout=20) as http:
        sent = await http.post(os.environ["SLACK_WEBHOOK_URL"], json={"text": escaped, "thread_ts": thread})
        sent.raise_for_status()


@workflow.defn
class SlackThread:
    """A thread: its messages are answered one after the other, those that have come meanwhile together."""

    @workflow.init
    def __init__(self, _thread: str, waiting: list[str], ids: list[str], _state: bytes) -> None:
        # Here, as signals are handled before `run` begins: they must know which messages were there before.
        self._waiting, self._ids = waiting, ids

    @workflow.run
    async def run(self, thread: str, _waiting: list[str], _ids: list[str], state: bytes) -> None:
        """Answer for ever. All arguments but `thread` come from the previous run of this workflow."""
        agent = DurableAgent("helper", state=state)
        while not agent.is_continue_as_new_suggested():
            await workflow.wait_condition(lambda: bool(self._waiting))
            said, self._waiting = "\n".join(self._waiting), []
            try:
                answer = str((await agent.run(said)).output)
            except MulliganError as error:  # such as a provider that refuses the request: the thread goes on
                answer = f"I could not answer ({type(error).__name__})."
            await workflow.execute_activity(
                post_answer, args=[thread, answer], start_to_close_timeout=timedelta(seconds=30),
                retry_policy=RetryPolicy(maximum_attempts=20),
            )  # fmt: skip
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(args=[thread, self._waiting, self._ids[-NEWEST:], agent.carry()])

    @workflow.signal
    def say(self, text: str, message_id: str) -> None:
        """Add a message. The same id again changes nothing."""
        if message_id not in self._ids:
            self._ids.append(message_id)
            self._waiting.append(text)

    @workflow.update
    async def send_message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Add a message of `mulligan send` or the console: `{"text", "id"?}`."""
        info = workflow.current_update_info()
        message_id = str(message.get("id") or (info.id if info else ""))
        self.say(str(message.get("text", "")), message_id)
        return {"accepted": True, "id": message_id}


def is_signed(body: bytes, timestamp: str, signature: str, secret: str) -> bool:
    """Whether Slack has signed the body: HMAC-SHA256 over `v0:TIMESTAMP:BODY`, and not long ago."""
    if not timestamp.isdecimal() or abs(time.time() - int(timestamp[:20])) > TOO_OLD:
        return False
    digest = hmac.new(secret.encode(), b"v0:%s:%s" % (timestamp.encode(), body), hashlib.sha256).hexdigest()
    return hmac.compare_digest(f"v0={digest}".encode(), signature.encode())


async def receive(request: Request) -> Response:
    """Take an event of Slack's. It is answered at once, as Slack wants it within three seconds."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            return Response("The body is too large.", 413)
    timestamp = request.headers.get("x-slack-request-timestamp", "")
    signature = request.headers.get("x-slack-signature", "")
    if not is_signed(body, timestamp, signature, os.environ["SLACK_SIGNING_SECRET"]):
        return Response("The signature is not Slack's.", 401)
    payload = json.loads(body)
    if payload["type"] == "url_verification":
        return JSONResponse({"challenge": payload["challenge"]})
    event = payload.get("event", {})
    if event.get("type") in ("app_mention", "message") and not event.get("bot_id") and not event.get("subtype"):
        await say(request, payload["team_id"], event)
    return Response()


async def say(request: Request, team: str, event: dict[str, Any]) -> None:
    """Signal a message to its thread's workflow, which is started with the first one."""
    thread = event.get("thread_ts") or event["ts"]
    await request.app.state.temporal.start_workflow(
        "SlackThread", args=[thread, [], [], b""], id=f"slack-{team}-{event['channel']}-{thread}",
        task_queue=os.environ.get("MULLIGAN_TASK_QUEUE", "agents"),
        # Two events about one message differ in `event_id`, not in the message's time.
        start_signal="say", start_signal_args=[event["text"], event["ts"]],
    )  # fmt: skip


@asynccontextmanager
async def connected(app: Starlette) -> AsyncIterator[None]:
    """Connect to Temporal while the server runs."""
    app.state.temporal = await connect()
    yield


app = Starlette(routes=[Route("/slack/events", receive, methods=["POST"])], lifespan=connected)
script = Script("helper", [lambda messages: Say(f"You said: {messages[-1].text}")])

if __name__ == "__main__":
    if missing := {"SLACK_SIGNING_SECRET", "SLACK_WEBHOOK_URL"} - set(os.environ):
        sys.exit(f"Set {' and '.join(sorted(missing))} (see {__file__}).")
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8400")))
