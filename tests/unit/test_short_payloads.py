"""What the payloads of each step leave out because it follows from the rest, and that readers have it again."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from temporalio.api.common.v1 import RetryPolicy as RetryPolicyMessage

from mulligan import AssistantMessage, ToolCall, Usage
from mulligan.wire.background import ReadResponse
from mulligan.wire.batch import BatchAnswer, ReadBatchAnswer
from mulligan.wire.conversation_ref import ConversationRef
from mulligan.wire.model_call import ModelAnswer, ModelCall, PreparedCall
from mulligan.wire.run_context import RunContext
from mulligan.wire.tool_call import CallTool, ToolOutcome, without_arguments
from mulligan.workflows import limits

WHERE = RunContext(agent="a", trace="t")
CALL = ToolCall(id="c", name="look", arguments='{"number": 1}')


def sent(value: BaseModel) -> dict[str, Any]:
    """The JSON of a payload, from which the value can be read."""
    assert type(value).model_validate_json(value.model_dump_json()) == value
    data: dict[str, Any] = json.loads(value.model_dump_json())
    return data


def test_a_call_has_no_text_of_arguments_beside_their_value() -> None:
    request = CallTool(where=WHERE, call=without_arguments(CALL), step=1, arguments={"number": 1}, digest="d")
    assert sent(request)["call"] == {"id": "c", "name": "look"}
    with_text = CallTool(where=WHERE, call=CALL, step=1, arguments=None, digest="d")
    assert sent(with_text)["call"] == CALL.model_dump()


def test_an_answer_has_no_role() -> None:
    message = AssistantMessage(role="assistant", tool_calls=[CALL])
    answer = ModelAnswer(message=message, prepared=[PreparedCall(arguments={"number": 1})], usage=Usage())
    assert sent(answer)["message"] == {"tool_calls": [{"id": "c", "name": "look", "spaced": {"number": 1}}]}
    assert (
        "role"
        not in sent(ModelAnswer(message=AssistantMessage(role="assistant", text="Hi."), usage=Usage()))["message"]
    )


def test_a_request_says_how_much_of_the_conversation_is_not_cached_unless_it_is_one_message() -> None:
    def request(uncached: int | None) -> ModelCall:
        whole = ConversationRef(count=9, digest="d")
        return ModelCall(where=WHERE, uncached=uncached, conversation=whole, model="m", step=1, definition="d")

    assert "uncached" not in sent(request(1))
    assert [sent(request(uncached))["uncached"] for uncached in (None, 0, 2)] == [None, 0, 2]
    assert [request(uncached).cached_messages for uncached in (None, 0, 1, 9)] == [None, 9, 8, 0]


def test_a_poll_does_not_say_that_nobody_knows_what_is_cached() -> None:
    call = {"where": WHERE, "conversation": ConversationRef(count=9, digest="d"), "model": "m", "step": 1} | {
        "definition": "d", "uncached": None, "started": 1.0,
    }  # fmt: skip
    for poll in (ReadResponse(**call, id="r", attempt=1), ReadBatchAnswer(**call, answer=BatchAnswer(key="k"))):
        assert "uncached" not in sent(poll)
        assert poll.cached_messages is None


def test_a_first_attempt_is_not_counted_and_its_policy_is_short() -> None:
    assert sent(ToolOutcome(text="done")) == {"text": "done"}
    assert [sent(ToolOutcome(attempts=attempts))["attempts"] for attempts in (0, 2)] == [0, 2]
    assert limits.tool_retry(2).maximum_interval == limits.TOOL_RETRY_LONGEST
    sizes = []
    for attempts in (1, 2):
        policy = RetryPolicyMessage()
        limits.tool_retry(attempts).apply_to_proto(policy)
        sizes.append(policy.ByteSize())
    assert sizes[0] < sizes[1]
