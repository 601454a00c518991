"""`once`: which calls of a tool are not executed a second time, and the record of a call for that comparison."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from mulligan.schema.optional_field import optional_field
from mulligan.schema.well_formed import WellFormedText

Once = bool | Literal["step", "conversation"]
"""The calls that a new one is compared with: none, those of the run, of the step, or of the whole conversation."""
MOST_CALLS = 1_000
"""The newest calls of a run that are remembered: about 150 bytes each, which continue-as-new and resume carry."""
EXCERPT_CHARS = 2_048
"""Characters of a result that are kept of a call whose message is no longer there; an excerpt has as many bytes at most."""


class OnceCall(BaseModel):
    """A call of a tool with `once` that has succeeded, or that may have done its work."""

    call_id: Annotated[str, Field(max_length=100)]
    """The id of the call."""
    digests: Annotated[list[Annotated[str, Field(max_length=32)]], Field(min_length=1, max_length=2)]
    """Of the arguments that it was executed with, and then, where a person edited those, of the model's."""
    once: Once
    """Its tool's."""
    key: Annotated[str | None, Field(max_length=64)] = optional_field()
    """Its idempotency key, where nobody knows whether it has done its work; None: it has succeeded."""
    text: WellFormedText | None = optional_field(max_length=EXCERPT_CHARS)
    """The beginning of its result, where the conversation no longer has that."""
    is_cut: bool = optional_field(False)
    """Whether `text` is not the whole result."""
    until: int | None = optional_field()
    """The first step of the turn in which it no longer counts; None: it counts. A fork may begin at a step before."""

    @property
    def has_succeeded(self) -> bool:
        """Whether the call has done its work for certain."""
        return self.key is None

    @property
    def executed(self) -> str:
        """The digest of the arguments that the call was executed with."""
        return self.digests[0]


def call_digest(name: str, arguments: str) -> str:
    """A digest of a tool's name and of the digest of its arguments (argument_digest.py)."""
    return hashlib.sha256(f"{name}\x1f{arguments}".encode()).hexdigest()[:32]
