"""The operator's file about requests that chat front ends send beside a conversation: what it may have, what it describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import Headers

from mulligan.errors import DeclarationError
from mulligan.serve.create_app import create_app
from mulligan.serve.openai_api.side_requests import MOST_DESCRIBED, side_requests

GOOD = """
[[request]]
prompt = "### Task:"
agent = "titles"

[[request]]
header = "X-Chore: title"
model = "openai@eu:small"

[[request]]
header = "x-quiet"
prompt = "Summarize"
agent = "summaries"
"""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "text": text}


@pytest.mark.parametrize(
    ("headers", "instructions", "messages", "fields"),
    [
        ({}, "", [user("Hello.")], {"agent": "shop"}),
        ({}, "", [user("\n ### Task:\nWrite a title.")], {"agent": "titles"}),
        ({}, "### Task: titles", [user("Hello.")], {"agent": "titles"}),
        ({}, "", [user("### Task:"), {"role": "assistant", "text": "Yes."}, user("Hello.")], {"agent": "shop"}),
        ({}, "", [user("Hello."), {"role": "assistant", "text": "### Task:"}], {"agent": "shop"}),
        ({}, "", [user("A ### Task:")], {"agent": "shop"}),
        (
            {}, "", [{"role": "user", "content": [{"type": "text", "text": "### Task:"}, {"type": "image", "url": "x"}]}],
            {"agent": "titles"},
        ),
        ({"x-chore": " title "}, "", [user("x")], {"agent": "shop", "model": "openai@eu:small", "model_only": True}),
        ({"x-chore": "tags"}, "", [user("x")], {"agent": "shop"}),
        ({"X-Quiet": "anything"}, "", [user("Summarize this.")], {"agent": "summaries"}),
        ({"X-Quiet": "anything"}, "", [user("Hello.")], {"agent": "shop"}),
        ({}, "", [user("Summarize this.")], {"agent": "shop"}),
    ],
)  # fmt: skip
def test_a_request_is_described_by_a_header_and_how_a_text_begins(
    tmp_path: Path, headers: dict[str, str], instructions: str, messages: list[Any], fields: dict[str, Any]
) -> None:
    path = tmp_path / "side.toml"
    path.write_text(GOOD)
    described = side_requests(str(path)).read()
    assert described.served_by(Headers(headers), "shop", instructions, messages).input_fields == fields
    assert side_requests("").read().served_by(Headers(headers), "shop", instructions, messages).input_fields == {
        "agent": "shop"
    }, "nothing is guessed"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[request]]\nagent = "titles"', "neither prompt nor header"),
        ('[[request]]\nprompt = "x"', "either agent or model"),
        ('[[request]]\nprompt = "x"\nagent = "titles"\nmodel = "openai:small"', "either agent or model"),
        ('[[request]]\nprompt = " "\nagent = "titles"', "'request.0.prompt' is invalid"),
        ('[[request]]\nprompt = "x"\nmodel = "small"', "model is not provider:NAME"),
        ('[[request]]\nprompt = "x"\ntool = "small"', "'request.0.tool' is invalid"),
        ('[requests]\nprompt = "x"', "'requests' is invalid"),
        ('[[request]]\nprompt = "x"\nagent = "a"\n' * (MOST_DESCRIBED + 1), "'request' is invalid"),
    ],
)
def test_a_fault_stops_the_server_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    path = tmp_path / "side.toml"
    path.write_text(text)
    monkeypatch.setenv("MULLIGAN_SIDE_REQUESTS", str(path))
    with pytest.raises(DeclarationError, match=says) as raised:
        create_app()
    assert "\n" not in str(raised.value)
    assert "MULLIGAN_SIDE_REQUESTS" in str(raised.value)
