"""What a request for a chat completion asks for, sent to the application without a server: whether its stream ends with the usage."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.testclient import TestClient
from temporalio.client import Client

from mulligan.serve.create_app import create_app
from mulligan.serve.http_protocol import runs_of
from tests.support.event_logs import plain_answer
from tests.support.run_log import USAGE, LoggedRuns


class StartedRuns(LoggedRuns):
    """Runs that each go as the log says."""

    def take_place(self, caller: Any) -> None:
        """There is one."""

    async def start(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(id=self.log.run_id)

    def stop_on_disconnect(self, *_: Any) -> None:
        """Runs go on."""


@pytest.fixture(scope="module")
def server() -> TestClient:
    app = create_app(client=cast(Client, None), tokens="")
    app.dependency_overrides[runs_of] = lambda: StartedRuns(plain_answer())
    return TestClient(app, base_url="http://127.0.0.1")


def answer(server: TestClient, **fields: Any) -> Any:
    body = {"model": "shop", "messages": [{"role": "user", "content": "Go."}], **fields}
    return server.post("/v1/chat/completions", json=body)


def chunks(text: str) -> list[dict[str, Any]]:
    """The chunks of a stream, without its last line."""
    *found, end = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert end == "[DONE]"
    return [json.loads(each) for each in found]


COUNTED = {"prompt_tokens": USAGE["input_tokens"], "completion_tokens": USAGE["output_tokens"]}


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_a_stream_has_no_usage_unless_the_client_asks_for_it(server: TestClient, options: Any) -> None:
    """A client that has not asked for the chunk without choices may read the first one of each."""
    found = chunks(answer(server, stream=True, stream_options=options).text)
    assert all(len(each["choices"]) == 1 and "usage" not in each for each in found)


def test_a_stream_whose_client_asks_for_it_ends_with_the_usage(server: TestClient) -> None:
    """Each chunk before it says that it has none, as OpenAI's do."""
    *found, last = chunks(answer(server, stream=True, stream_options={"include_usage": True}).text)
    assert [each["usage"] for each in found] == [None] * len(found)
    assert last["choices"] == []
    assert last["usage"].items() >= COUNTED.items()


def test_a_completion_without_a_stream_has_the_usage(server: TestClient) -> None:
    assert answer(server).json()["usage"].items() >= COUNTED.items()


@pytest.mark.parametrize(
    ("options", "name"), [(5, "stream_options"), ({"include_usage": "yes"}, "include_usage")], ids=["number", "text"]
)
def test_options_of_another_form_are_refused_by_their_name(server: TestClient, options: Any, name: str) -> None:
    refused = answer(server, stream=True, stream_options=options)
    assert refused.status_code == 400
    assert name in refused.json()["error"]["message"]
