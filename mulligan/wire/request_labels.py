"""What requests to a provider carry beside the conversation: digests that name it, and the person it is for."""

from __future__ import annotations

import hashlib

from mulligan.wire.start_input import InheritedLabels, StartInput

KEY_CHARS = 32
MAIN_CONVERSATION = "0"
"""The number of the conversation of a workflow with one agent."""


def prompt_cache_key(workflow_id: str, conversation: str, run_input: StartInput | None) -> str:
    """The key by which a provider finds the beginning of a conversation in its cache, as hexadecimal digits.

    Args:
        workflow_id: Of the run.
        conversation: The number of the agent's conversation in its workflow.
        run_input: The run's input: a run that continues another one's conversation, or was forked from it, has that
            one's key.
    """
    labels = run_input.carried.labels if run_input else None
    return (labels.cache_key if labels else "") or _digest(workflow_id, conversation)


def safety_identifier(tenant: str | None, user: str | None) -> str:
    """The identifier of a person for a provider, which does not say who it is. "": nobody is named."""
    return "" if user is None else _digest(*filter(None, (tenant, user)))


def labels_for(cache_key: str, earlier: StartInput, user: str | None) -> InheritedLabels:
    """The labels that a run inherits which continues or forks an earlier one. `cache_key`: of that one; `user`: its own."""
    labels = earlier.carried.labels
    identifier = (labels.safety_identifier if labels else "") or safety_identifier(earlier.tenant, earlier.user)
    is_own = identifier == safety_identifier(earlier.tenant, user)
    return InheritedLabels(cache_key=cache_key, safety_identifier="" if is_own else identifier)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode(errors="replace")).hexdigest()[:KEY_CHARS]
