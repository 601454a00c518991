"""The metadata of a request, and what of it a run gets: a customer's is `client_metadata`, for tools and policies alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.run_input import RunInput
from mulligan.serve.caller import Caller
from mulligan.serve.problems import Problem
from mulligan.serve.shown_json import shown_json

MOST_METADATA, MOST_NAME_CHARS, MOST_VALUE_CHARS = 16, 64, 512
"""OpenAI's limits."""
_NOTHING: Mapping[str, str] = {}


def run_metadata(
    caller: Caller, sent: Mapping[str, str] | None, marks: Mapping[str, str] = _NOTHING
) -> dict[str, dict[str, str]]:
    """The `metadata` and the `client_metadata` of the run that a request starts.

    Args:
        caller: Who sends it.
        sent: Its metadata; None: it says nothing of it. Then a run that a trusted caller continues keeps what it has.
        marks: What the door itself adds.

    Raises:
        Problem: a customer sends too much.
    """
    if caller.is_customer:
        check_metadata(sent or {})
        return {"metadata": {**caller.metadata, **marks}, "client_metadata": dict(sent or {})}
    if sent is None and not marks:
        return {}
    return {"metadata": {**caller.metadata, **(sent or {}), **marks}, "client_metadata": {}}


def shown_metadata(caller: Caller, run_input: RunInput) -> dict[str, str]:
    """What a door gives back as the metadata of a run: the client's own, and never what `authenticate` has said of it."""
    if caller.is_customer:
        return dict(run_input.client_metadata)
    known = caller.metadata.items()
    own = {name: value for name, value in run_input.metadata.items() if (name, value) not in known}
    return {**own, **run_input.client_metadata}


def read_metadata(given: Any) -> dict[str, str]:
    """The metadata of a request's body; None is none.

    Raises:
        Problem: it is no object of texts, or has too many.
    """
    if not isinstance(given, dict | None) or not all(isinstance(each, str) for each in (given or {}).values()):
        raise Problem(
            422, "invalid_input", f'"metadata" is {shown_json(given)}; it must be an object whose values are texts.'
        )
    metadata = dict(given or {})
    check_metadata(metadata)
    return metadata


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Refuse metadata of a client that is too large.

    Raises:
        Problem: it is.
    """
    if len(metadata) > MOST_METADATA:
        raise Problem(422, "invalid_input", f'"metadata" has {len(metadata)} texts; send at most {MOST_METADATA}.')
    for name, value in metadata.items():
        if not is_short(name, value):
            raise Problem(
                422, "invalid_input", f'"metadata" has {name[:80]!r} with {len(value):,} characters; a name may have '
                f"{MOST_NAME_CHARS}, a text {MOST_VALUE_CHARS}.",
            )  # fmt: skip


def is_short(name: str, value: str) -> bool:
    """Whether a name and a text are not too long."""
    return len(name) <= MOST_NAME_CHARS and len(value) <= MOST_VALUE_CHARS
