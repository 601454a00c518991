"""Ids go back to their endpoint as it gave them, and none twice: whatever ids it gives, once or again and again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mulligan.activities.models._legal_calls import legal_id
from mulligan.activities.models.own_ids import kept_ids, own_ids
from mulligan.values import AssistantMessage, ToolCall

IDS = st.sampled_from(["", "a", "b", "a_1", "c d", "é", "x" * 50])
"""As endpoints give them, and as they are made unique here."""


@given(st.lists(st.lists(st.tuples(IDS, st.booleans()), max_size=3), max_size=6))
def test_each_call_has_an_id_of_its_own_and_that_of_its_endpoint_where_that_is_free(
    answers: list[list[tuple[str, bool]]],
) -> None:
    """`True`: the id was taken, or not legal, so that the call has another one here."""
    messages, used = list[AssistantMessage](), set[str]()
    for answer in answers:
        written = [ToolCall(id=own, name="t", arguments="{}") for own, _ in answer]
        calls = []
        for call, (_, is_renamed) in zip(written, answer, strict=True):
            number = sum(map(len, answers)) + len(used)
            here = f"call_{number}" if is_renamed or not call.id or legal_id(call.id) in used else call.id
            used.add(legal_id(here))
            calls.append(call.model_copy(update={"id": here}))
        data = kept_ids("vllm", written, calls)
        messages.append(AssistantMessage(role="assistant", text="", tool_calls=calls, provider_data=data or None))
    ids = own_ids(messages, "vllm")
    sent = [ids.get(legal_id(call.id), legal_id(call.id)) for each in messages for call in each.tool_calls]
    assert len(sent) == len(set(sent))
    given_by_it = {own for answer in answers for own, _ in answer}
    assert {*ids.values()} <= given_by_it
    assert own_ids(messages, "other") == {}
    once = [own for answer in answers for own, _ in answer]
    assert all(own in sent for own in once if own and once.count(own) == 1 and own == legal_id(own))
