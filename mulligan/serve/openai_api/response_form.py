"""The two forms of a response: OpenAI's, and that of Open Responses for clients that send its header.

Open Responses wants what is no item or event of its own to be named after who makes it; OpenAI's SDKs know the calls of a
run by OpenAI's names only. So the words differ, and what they say does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from mulligan.content import Image
from mulligan.serve.openai_api.openai_errors import error_json
from mulligan.serve.openai_api.request_fields import SERVER_LABEL
from mulligan.serve.problems import Problem

HEADER = "openresponses-version"
"""Any value of it: what is published has one form."""
Json = dict[str, Any]


@dataclass(frozen=True)
class ResponseForm:
    """The words of a form."""

    call: str
    """The type of an item that is a call of the run."""
    call_events: str
    """What the types of its events begin with."""
    approval: str
    """The type of an item that asks for an approval."""
    image: str
    """The type of an item that is an image of the model's."""
    is_open: bool = False
    """Whether it is that of Open Responses."""

    @property
    def fields(self) -> Json:
        """The fields of a response that say nothing of a run: the agent decides, and a client's values are ignored."""
        penalties = {"presence_penalty": 0.0, "frequency_penalty": 0.0} if self.is_open else {}
        numbers = {"temperature": 1.0, "top_p": 1.0, **penalties, "top_logprobs": 0, "max_tool_calls": None}
        return {**numbers, "safety_identifier": None, "prompt_cache_key": None}

    def call_item(self, item_id: str, name: str, arguments: str, status: str) -> Json:
        """A call of the run that has no result."""
        item = {"id": item_id, "type": self.call, "status": status, **self._label, "name": name}
        return {**item, "arguments": arguments, "output": None, "error": None, "approval_request_id": None}

    def image_item(self, item_id: str, image: Image) -> Json:
        """An image that the model has made. `result` is null where its bytes are not here."""
        made = {"result": image.data, "output_format": image.media_type.partition("/")[2]}
        shown = image.without_data().model_dump(mode="json")
        return {"id": item_id, "type": self.image, "status": "completed", **made, "mulligan": shown}

    def call_error(self, text: str) -> Json:
        """The `error` of a call's item."""
        if self.is_open:
            return {"message": text}
        return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}

    def approval_item(self, item_id: str, name: str, arguments: str) -> Json:
        """A call that waits for an approval."""
        status = {"status": "completed"} if self.is_open else {}
        return {"id": item_id, "type": self.approval, **status, **self._label, "name": name, "arguments": arguments}

    def incomplete_details(self, reason: str | None, status: str) -> Json:
        """Why a run of a status is incomplete. Open Responses wants some reason, OpenAI has two."""
        return {"reason": reason or (status if self.is_open else None)}

    def error_event(self, problem: Problem, number: int) -> Json:
        """The event with which a stream ends that cannot go on. No `response.failed` follows: the run has not failed."""
        error = error_json(problem)["error"]
        if not self.is_open:
            error = {"code": problem.code, "message": problem.detail, "param": None}
        return {"type": "error", "sequence_number": number, **({"error": error} if self.is_open else error)}

    @property
    def _label(self) -> Json:
        return {} if self.is_open else {"server_label": SERVER_LABEL}


OPENAI = ResponseForm("mcp_call", "response.mcp_call", "mcp_approval_request", "image_generation_call")
OPEN_RESPONSES = ResponseForm(
    "mulligan:tool_call", "mulligan:tool_call", "mulligan:approval_request", "mulligan:image", is_open=True
)
OPENAIS_WORD = {
    OPEN_RESPONSES.call: OPENAI.call,
    OPEN_RESPONSES.approval: OPENAI.approval,
    "mulligan:approval_response": "mcp_approval_response",
}
"""Of the items that clients send, by the word of Open Responses."""


async def form_of(request: Request) -> ResponseForm:
    """The form that the client of a request knows."""
    return OPEN_RESPONSES if HEADER in request.headers else OPENAI


Form = Annotated[ResponseForm, Depends(form_of)]
