"""The version of an agent's file that a run works by: pinned when it opens."""

from __future__ import annotations

import re

from pydantic import BaseModel

from mulligan.schema.optional_field import optional_field

VERSION_QUERY = "mulligan_version"
"""The query for the version that a run works by, for a worker that does not know it."""
VERSION_MEMO = "mulligan_version"
"""The key of the version, its label and its share in a run's memo."""
CURRENT = "current"
"""The word for the agent as workers serve it now, which is no label."""
LEAST_DIGITS = 8
"""Hexadecimal digits by which a version may be named."""
MOST_VERSIONS = 20
"""Versions that one command names."""
DIGITS = re.compile(rf"[0-9a-f]{{{LEAST_DIGITS},64}}")


class AgentVersion(BaseModel):
    """A version of an agent's file, which a run keeps until it ends.

    `digest`: the SHA-256 of the file. `label`: that by which it was chosen, with its `share` of the conversations, such as
    `5%`. `text`: the file; None where it is in the content storage.
    """

    digest: str
    label: str = optional_field("")
    share: str = optional_field("")
    text: str | None = optional_field()

    @property
    def listed(self) -> dict[str, str]:
        """The version, its label and the label's share as JSON, for lists of runs."""
        return self.model_dump(exclude={"text"}, exclude_defaults=True)


class VersionRequest(BaseModel):
    """The argument of the query: the key of the `conversation`, and the name of the `agent` that has it, or had it."""

    conversation: str
    agent: str
