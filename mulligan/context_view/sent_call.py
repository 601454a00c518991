"""Finds the model call of a step in the history of a run: what its activity was given, and with which settings it called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue
from temporalio.client import Client

from mulligan.context_view.model_calls import model_calls
from mulligan.features import all_words
from mulligan.wire.model_call import CALL_MODEL, ModelCall

_ACTIVITIES = {CALL_MODEL, *all_words().activities}
"""Activities whose input may be a model call: the feature that carries a call out has an activity of its own for it."""


@dataclass
class SentCall:
    """The last model call of a step. `settings`: those that the answer names; None: it names none, or there is no answer."""

    call: ModelCall
    settings: dict[str, JsonValue] | None = None


async def find_sent_call(client: Client, workflow_id: str, run_id: str, trace: str, step: int) -> SentCall | None:
    """The last model call of a step, of whichever run of a chain made it; None: none did, as far as history is there.

    Args:
        client: A client of the run's server.
        workflow_id: The run.
        run_id: The last workflow run of the chain that may have made it.
        trace: The traceparent of the turn.
        step: The step's number in its turn.

    Raises:
        RPCError: Temporal does not answer.
        UnreadableError: the history cannot be decoded.
    """
    async for made in model_calls(client, workflow_id, run_id, _ACTIVITIES):
        if (made.call.step, made.call.where.trace) == (step, trace):
            return SentCall(made.call, _settings(made.result))
    return None


def _settings(outcome: Any) -> dict[str, JsonValue] | None:
    """The settings in a model's answer, which may be the result of the activity, or a part of it."""
    answer = outcome.get("answer") or outcome if isinstance(outcome, Mapping) else {}
    settings = answer.get("settings") if isinstance(answer, Mapping) else None
    return settings if isinstance(settings, dict) else None
