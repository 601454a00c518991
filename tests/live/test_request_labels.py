"""OpenAI's `prompt_cache_key` and `safety_identifier`: digests of the conversation and of the user, which a run inherits."""

from __future__ import annotations

from mulligan import fork_run, resume_run
from mulligan.client.origins.fork_run import parse_fork, start_fork
from tests.support.lab import DONE, Lab, Ran, call
from tests.support.openai_turn import Failure, Turn


def labels(ran: Ran) -> list[tuple[str | None, str | None]]:
    return [(each.json.get("prompt_cache_key"), each.json.get("safety_identifier")) for each in ran.requests]


async def test_a_run_names_its_conversation_and_its_user_and_a_continuation_inherits_both(lab: Lab) -> None:
    first = await lab.run([call("now"), DONE, DONE, DONE], user="ada@example.com", tenant="acme")
    [(key, user)] = set(labels(first))
    assert key
    assert user
    assert len(key) <= 64
    assert "ada" not in f"{key}{user}"
    assert first.id not in key
    second = await resume_run(lab.client, first.id, prompt="And?", task_queue=lab.task_queue)
    await lab.client.get_workflow_handle(second.id).result()
    third = await resume_run(lab.client, second.id, prompt="And?", task_queue=lab.task_queue)
    await lab.client.get_workflow_handle(third.id).result()
    asked = lab.model.requests_of(first.id)
    assert len(asked) == 4
    assert {(each.json["prompt_cache_key"], each.json["safety_identifier"]) for each in asked} == {(key, user)}
    other = await lab.run([DONE], user="bob@example.com", tenant="acme")
    [(other_key, other_user)] = labels(other)
    assert key != other_key
    assert user != other_user


async def test_a_server_that_refuses_the_key_is_asked_without_it(lab: Lab) -> None:
    told = {"error": {"message": "Unknown parameter: 'prompt_cache_key'.", "code": "unknown_parameter"}}
    for api in ("openai", "openai-chat"):
        ran = await lab.run(
            lambda body, nth: Turn(failure=Failure(status=400, body=told)) if "prompt_cache_key" in body else DONE,
            api=api,
        )
        assert ran.result["output"] == "done"
        assert [bool(key) for key, _ in labels(ran)] == [True, False]


async def test_a_fork_inherits_both_and_a_rerun_has_its_own_key(lab: Lab) -> None:
    """Also a fork for another person, one of a fork, one of a run that continues another, and a continuation of a fork."""
    first = await lab.run([call("now"), DONE, DONE], user="ada@example.com", tenant="acme", api="openai")
    sent = labels(first)[0]
    second = await resume_run(lab.client, first.id, prompt="And?", task_queue=lab.task_queue)
    await second.result()
    lab.model.script(first.id, lambda body, nth: DONE)
    for origin in (first.id, second.id):
        forked = await start_fork(lab.client, origin, parse_fork({}), user="bob@example.com")
        await forked.handle.result()
        again = await fork_run(lab.client, forked.handle.id)
        await again.result()
        more = await resume_run(lab.client, again.id, prompt="And?", task_queue=lab.task_queue)
        await more.result()
    asked = lab.model.requests_of(first.id)
    assert len(asked) == 9
    assert {(each.json["prompt_cache_key"], each.json["safety_identifier"]) for each in asked} == {sent}
    rerun = await fork_run(lab.client, first.id, at=1, pinned=False)
    await rerun.result()
    key, person = labels(await lab.look(first.handle))[-1]
    assert key not in (None, sent[0])
    assert person == sent[1]
