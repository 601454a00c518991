"""Models that an open run keeps share their sets of given fields, and nothing else about them changes."""

from __future__ import annotations

from mulligan import AssistantMessage, ErrorInfo, Message, ToolCall, ToolMessage, Usage, UserMessage
from mulligan.activities.models.scripted import Scripted
from mulligan.activities.run_data.conversation_cache import CachedConversation
from mulligan.schema.shared_field_sets import has_shared_field_set, share_field_sets
from mulligan.wire.model_call import PreparedCall
from mulligan.workflows.conversation.conversation import Conversation


def messages() -> list[Message]:
    call = ToolCall(id="call_1", name="look", arguments='{"number": 1}')
    error = ErrorInfo(kind="tool_error", message="It broke.")
    return [
        UserMessage(role="user", text="Look."),
        AssistantMessage(role="assistant", tool_calls=[call]),
        ToolMessage(role="tool", call_id="call_1", name="look", text="It broke.", error=error),
    ]


def test_the_messages_and_steps_of_an_open_run_have_no_sets_of_their_own() -> None:
    """In the workflow, in a continued one, and in the cache of a worker."""
    user, answer, result = messages()
    run = Conversation()
    run.append_request([user])
    assert isinstance(answer, AssistantMessage)
    assert isinstance(result, ToolMessage)
    run.begin_step(answer, [PreparedCall(arguments={})], Usage(input_tokens=7), "m")
    run.end_step([result])
    cached = CachedConversation(Scripted({}))
    cached.extend(messages())
    for conversation in (run, Conversation.load(run.dump())):
        step = conversation.steps[0]
        for model in (*conversation.messages, step.usage):
            assert has_shared_field_set(model), model
        assert not any(hasattr(record, "__dict__") for record in (step, *step.calls)), "they have slots"
    for message in cached.messages:
        assert has_shared_field_set(message), message
    nested = (cached.messages[1].tool_calls[0], cached.messages[2].error)  # type: ignore[union-attr]
    assert all(model is not None and has_shared_field_set(model) for model in nested)


def test_sharing_changes_neither_json_nor_copies() -> None:
    for plain, shared in zip(messages(), messages(), strict=True):
        share_field_sets(shared)
        assert shared == plain
        assert shared.model_dump_json() == plain.model_dump_json()
        copy = shared.model_copy(update={"text": "Something else."})
        copy.text = "Once more."
        assert not has_shared_field_set(copy)
        assert has_shared_field_set(shared)
        assert shared.text == plain.text


def test_an_assignment_to_one_model_changes_nothing_for_the_others() -> None:
    one, other = Usage(input_tokens=1), Usage()
    share_field_sets([one, other])
    before = set(other.model_fields_set)
    one.output_tokens = 5
    assert other.model_fields_set == before == set(Usage.model_fields)
    assert other.output_tokens == 0
