"""How the OpenAI protocol refuses: with a status after which no client sends the same request again in vain."""

from __future__ import annotations

import json

import pytest

from mulligan.errors import UpdateRefusedError
from mulligan.serve.openai_api.openai_protocol import OPENAI
from mulligan.serve.problems import Problem, problem_of


@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (problem_of(UpdateRefusedError("The call was decided by eve.")), 400),
        (Problem(409, "id_taken", "There is one."), 400),
        (Problem(422, "invalid_input", "No."), 400),
        (Problem(404, "run_not_found", "No."), 404),
        (Problem(503, "no_worker", "Later."), 503),
    ],
)
def test_what_is_due_to_the_state_of_a_run_is_no_conflict_that_clients_repeat(problem: Problem, status: int) -> None:
    refusal = OPENAI.refuse(problem)
    assert (refusal.status_code, json.loads(bytes(refusal.body))["error"]["code"]) == (status, problem.code)
    assert refusal.headers.get("x-should-retry") == (None if status == 503 else "false")
