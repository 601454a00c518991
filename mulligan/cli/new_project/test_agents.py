"""Tests of the agent: the model is scripted, the tools run; no server and no key."""

from __future__ import annotations

from agents import support

from mulligan import Call, Say
from mulligan.testing import ScriptedModel, run_agent


async def test_a_wrong_field_is_fixed() -> None:
    cancels = Say(calls=[Call("cancel_order", {"number": 7})])
    run = await run_agent(support, "Cancel order 7.", model=ScriptedModel(cancels, "Done."))
    [call] = run.calls
    assert call.arguments == {"order_id": 7}
    assert call.result is not None
    assert call.result.text == "Order 7 is cancelled."
    assert run.output == "Done."


async def test_the_model_reads_what_went_wrong() -> None:
    cancels = Say(calls=[Call("cancel_order", {"order_id": 8})])
    run = await run_agent(support, "Cancel order 8.", model=ScriptedModel(cancels, "There is no such order."))
    [call] = run.calls
    assert call.result is not None
    assert call.result.text == "There is no order 8."
    assert run.result is not None
    assert run.result.recovered_failures == 1
