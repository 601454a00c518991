"""examples/slack_channel.py: its server on a real socket, signed requests as Slack sends them, answers at a webhook."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
import uvicorn
from aiohttp import web
from temporalio.client import Client

from examples import slack_channel
from examples.slack_channel import is_signed
from mulligan import DurableAgent, Message, RunResult, Say, Script
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.lab import Lab

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"


@dataclass
class Slack:
    """The side of Slack: it sends signed events, and takes what is posted at the webhook."""

    url: str
    queue: str
    posted: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    fails: int = 0
    """How many of the next posts are answered with 503."""

    async def take(self, request: web.Request) -> web.Response:
        """Take a post."""
        if self.fails:
            self.fails -= 1
            return web.Response(status=503)
        await self.posted.put(await request.json())
        return web.Response(text="ok")

    async def send(self, payload: Any, *, age: float = 0, secret: str = SECRET) -> httpx2.Response:
        """Send an event."""
        body, timestamp = json.dumps(payload).encode(), str(int(time.time() - age))
        digest = hmac.new(secret.encode(), f"v0:{timestamp}:".encode() + body, hashlib.sha256).hexdigest()
        headers = {"X-Slack-Request-Timestamp": timestamp, "X-Slack-Signature": f"v0={digest}"}
        async with httpx2.AsyncClient() as http:
            return await http.post(f"{self.url}/slack/events", content=body, headers=headers, timeout=30)

    async def say(self, text: str, at: str, thread: str | None = None, **fields: Any) -> None:
        """Send a message of a person."""
        event = {"type": "app_mention", "user": "U1", "channel": self.queue, "text": text, "ts": at, **fields}
        if thread:
            event["thread_ts"] = thread
        sent = await self.send(
            {"type": "event_callback", "team_id": "T1", "event_id": uuid.uuid4().hex, "event": event}
        )
        assert sent.status_code == 200


@asynccontextmanager
async def working(lab: Lab, slack: Slack) -> AsyncIterator[None]:
    """A worker of the channel."""
    async with running_worker(lab.client, load(["examples.slack_channel"]), lab.telemetry, slack.queue):
        yield


@pytest.fixture
async def slack(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Slack]:
    queue = f"slack-{uuid.uuid4().hex[:6]}"

    async def same_client() -> Client:
        return lab.client

    monkeypatch.setattr(slack_channel, "connect", same_client)
    server = uvicorn.Server(uvicorn.Config(slack_channel.app, host="127.0.0.1", port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.02)
    at = Slack(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", queue)
    receiver = web.AppRunner(web.Application(), access_log=None)
    receiver.app.router.add_post("/hook", at.take)
    await receiver.setup()
    await web.TCPSite(receiver, "127.0.0.1", 0).start()
    monkeypatch.setenv("SLACK_SIGNING_SECRET", SECRET)
    monkeypatch.setenv("SLACK_WEBHOOK_URL", f"http://127.0.0.1:{receiver.addresses[0][1]}/hook")
    monkeypatch.setenv("MULLIGAN_TASK_QUEUE", queue)
    yield at
    server.should_exit = True
    await serving
    await receiver.cleanup()


def test_the_signature_is_that_of_slacks_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example in "Verifying requests from Slack": its secret, timestamp, body and signature."""
    monkeypatch.setattr(time, "time", lambda: 1531420618 + 299)
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&"
        b"channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&"
        b"response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&"
        b"trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    assert is_signed(body, "1531420618", signature, SECRET)
    assert not is_signed(body + b" ", "1531420618", signature, SECRET)
    assert not is_signed(body, "1531420617", signature, SECRET)
    assert not is_signed(body, "1531420618", signature.removeprefix("v0="), SECRET)
    assert not is_signed(body, "1531420618", "é", SECRET)
    monkeypatch.setattr(time, "time", lambda: 1531420618 + 301)
    assert not is_signed(body, "1531420618", signature, SECRET)


async def test_a_thread_is_one_workflow_that_answers_each_message_once(slack: Slack, lab: Lab) -> None:
    """A message that Slack sends again, or as another event about it, changes nothing; the post is tried again."""
    slack.fails = 1
    first, now = "Hello <there> & you", "And now?"
    await slack.say(first, "1700000000.000100")  # no worker runs yet
    async with working(lab, slack):
        posted = await slack.posted.get()
        assert posted == {"text": "You said: Hello &lt;there&gt; &amp; you", "thread_ts": "1700000000.000100"}
        await slack.say(first, "1700000000.000100")
        await slack.say(now, "1700000001.000100", "1700000000.000100")
        await slack.say("I am a bot", "1700000002.000100", "1700000000.000100", bot_id="B1")
        posted = await slack.posted.get()
        assert posted == {"text": "You said: And now?", "thread_ts": "1700000000.000100"}
        handle = lab.client.get_workflow_handle(f"slack-T1-{slack.queue}-1700000000.000100")
        # As `mulligan send` and the console do.
        await handle.execute_update("send_message", {"text": "From a colleague."})
        assert (await slack.posted.get())["text"] == "You said: From a colleague."
        messages = (await handle.query("messages"))["messages"]
        await handle.terminate()
    assert [message["text"] for message in messages if message["role"] == "user"] == [first, now, "From a colleague."]


async def test_a_thread_goes_on_after_a_turn_that_has_failed(
    slack: Slack, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(messages: Sequence[Message]) -> Say:
        if messages[-1].text == "Hello":
            raise RuntimeError("no key")
        return Say("Here I am.")

    monkeypatch.setattr(Script, "answer", lambda _script, messages, _summarized=0: refuses(messages))
    thread = "1700000009.000100"
    async with working(lab, slack):
        await slack.say("Hello", thread)
        failed = await slack.posted.get()
        assert failed == {"text": "I could not answer (ModelRequestError).", "thread_ts": thread}
        await slack.say("And now?", "1700000010.000100", thread)
        assert (await slack.posted.get())["text"] == "Here I am."
        await lab.client.get_workflow_handle(f"slack-T1-{slack.queue}-{thread}").terminate()


async def test_a_thread_remembers_its_messages_after_it_has_continued_as_new(
    slack: Slack, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both what was said, which the model reads, and which messages were answered."""

    class Continues(DurableAgent[str]):
        turns = 0

        async def run(self, *arguments: Any, **options: Any) -> RunResult[str]:
            self.turns += 1
            return await super().run(*arguments, **options)

        def is_continue_as_new_suggested(self) -> bool:
            return self.turns > 0

    monkeypatch.setattr(slack_channel, "DurableAgent", Continues)
    monkeypatch.setattr(
        Script, "answer", lambda _script, messages, _summarized=0: Say(" ".join(m.text for m in messages))
    )
    thread = "1700000020.000100"
    async with working(lab, slack):
        await slack.say("One.", thread)
        assert (await slack.posted.get())["text"] == "One."
        await slack.say("One.", thread)
        await slack.say("Two.", "1700000021.000100", thread)
        assert (await slack.posted.get())["text"] == "One. One. Two."
        handle = lab.client.get_workflow_handle(f"slack-T1-{slack.queue}-{thread}")
        description = await handle.describe()
        assert description.run_id != description.raw_description.workflow_execution_info.first_run_id
        await handle.terminate()


async def test_a_continued_thread_knows_its_messages_before_it_handles_new_ones(slack: Slack, lab: Lab) -> None:
    """Signals are handled before a workflow's `run` begins."""
    thread, workflow_id = "1700000030.000100", f"slack-T1-{slack.queue}-1700000030.000100"
    handle = await lab.client.start_workflow(
        "SlackThread", args=[thread, [], [thread], b""], id=workflow_id, task_queue=slack.queue,
        start_signal="say", start_signal_args=["One.", thread],
    )  # fmt: skip
    async with working(lab, slack):
        await slack.say("Two.", "1700000031.000100", thread)
        assert (await slack.posted.get())["text"] == "You said: Two."
        await handle.terminate()


@pytest.mark.parametrize("fault", ["secret", "age", "size", "none"])
async def test_only_signed_and_fresh_requests_of_a_sensible_size_are_taken(slack: Slack, fault: str) -> None:
    payload = {"type": "url_verification", "challenge": "c" * (200_000 if fault == "size" else 10)}
    sent = await slack.send(
        payload, age=400 if fault == "age" else 0, secret="another" if fault == "secret" else SECRET
    )
    assert sent.status_code == {"none": 200, "size": 413}.get(fault, 401)
    if fault == "none":
        assert sent.json() == {"challenge": "c" * 10}
