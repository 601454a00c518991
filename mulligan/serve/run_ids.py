"""The forms of ids that this server, or Mulligan's workflows, make themselves. A client cannot choose such an id for a run.

A run with one would be in the way of the run that is to have it: the continuation of another run, the first turn of a
conversation, the run of a sub-agent, an answer to `/v1`.
"""

from __future__ import annotations

import re

from mulligan.serve.problems import Problem

MOST_ID_CHARS = 500
"""Characters of an id that a client chooses. Temporal accepts 1,000 bytes, and the ids of sub-agents' runs begin with their
parent's."""

_CHAT = r".*-thread-[0-9a-f]{32}(-branch)?(-\d+)?"
_RESERVED = {
    re.compile("mulligan-.*"): "Mulligan's own workflows",
    re.compile(r".+-resumed(-\d+)?"): "continuations of runs",
    re.compile(_CHAT): "conversations of chat pages",
    re.compile(r"(resp_|chatcmpl-|keyed-)[0-9a-f]{32}(-\d+)?"): "runs that are started for repeatable requests",
    re.compile(r".*/.*"): "runs of sub-agents",
}
"""Each form, and what has such ids."""


def is_of_chat(run_id: str) -> bool:
    """Whether a run is a turn of a conversation of chat pages, by its id."""
    return re.fullmatch(rf"{_CHAT}(-resumed(-\d+)?)?", run_id) is not None


def check_id(run_id: str, most: int = MOST_ID_CHARS) -> None:
    """Check the id of a run.

    Raises:
        Problem: it is no text that an id can be.
    """
    if not run_id.strip() or len(run_id) > most or not run_id.isprintable():
        raise Problem(422, "invalid_input", f'"id" is {run_id[:80]!r}; it must be 1 to {most} printable characters.')


def check_chosen_id(run_id: str) -> None:
    """Check the id that a client has chosen for a new run.

    Raises:
        Problem: it is no valid id, or ids of this form are not for clients.
    """
    check_id(run_id)
    for form, owner in _RESERVED.items():
        if form.fullmatch(run_id):
            raise Problem(
                422, "invalid_input", f'"id" is {run_id[:80]!r}; {owner} have ids of this form: choose another one.'
            )
