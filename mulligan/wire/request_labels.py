"""What requests to a provider carry beside the conversation: digests that name it, and the person it is for."""

from __future__ import annotations

import hashlib

from mulligan.run_input import RunInput

KEY_CHARS = 32
MAIN_CONVERSATION = "0"
"""The number of the conversation of a workflow with one agent."""


def prompt_cache_key(workflow_id: str, conversation: str, run_input: RunInput | None) -> str:
    """The key by which a provider finds the beginning of a conversation in its cache, as hexadecimal digits.

    Args:
        workflow_id: Of the run.
        conversation: The number of the agent's conversation in its workflow.
        run_input: The run's input: a run that continues another one's conversation, or was forked from it, has that
            one's key.
    """
    source = (run_input.resumed_from or run_input.forked_from) if run_input else None
    return (source.cache_key if source else "") or _digest(workflow_id, conversation)


def safety_identifier(tenant: str | None, user: str | None) -> str:
    """The identifier of a person for a provider, which does not say who it is. "": nobody is named."""
    return "" if user is None else _digest(*filter(None, (tenant, user)))


def inherited_identifier(earlier: RunInput, user: str | None) -> str:
    """The identifier that a run inherits which continues or forks an earlier one; "": its own `user` has it."""
    source = earlier.resumed_from or earlier.forked_from
    identifier = (source.safety_identifier if source else "") or safety_identifier(earlier.tenant, earlier.user)
    return "" if identifier == safety_identifier(earlier.tenant, user) else identifier


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode(errors="replace")).hexdigest()[:KEY_CHARS]
