"""The instructions in an agent's file, with places for values of the run's input: `{{ prompt }}`, `{{ metadata.KEY }}` …"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mulligan.errors import InvalidRunInputError
from mulligan.run_input import RunInput
from mulligan.schema.cut_text import beginning
from mulligan.schema.yaml_fields import FileFault

_BRACES = re.compile(r"\\\{\{|\{\{\s*(?:(prompt|tenant|user)|metadata\.([^\s{}]+))\s*\}\}|\{\{")
_LINE_BREAK = re.compile(r"\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
MOST_CHARACTERS = 2_000_000
"""Of the instructions of a run: a file has room for 16,000 places, each for the whole prompt."""
PLACES = "{{ prompt }}, {{ metadata.KEY }}, {{ tenant }} and {{ user }}"


@dataclass(frozen=True)
class Place:
    """A place for a value: `name` is `prompt`, `tenant` or `user`, or "" for the metadata's value of `key`."""

    name: str
    key: str = ""


@dataclass(frozen=True)
class InstructionsTemplate:
    """The texts and the places, in their order. `agent`: the name of the agent, for errors."""

    agent: str
    parts: tuple[str | Place, ...]

    @property
    def plain(self) -> str | None:
        """The text; None if it has places."""
        return None if any(isinstance(each, Place) for each in self.parts) else "".join(map(str, self.parts))

    def write(self, run_input: RunInput) -> str:
        """The instructions for a run. A value is on one line, whatever it has: it cannot begin a section of its own.

        Raises:
            InvalidRunInputError: the input lacks a key of the metadata, or its values make the instructions too long.
        """
        values = {each: self._value(each, run_input) for each in self.parts if isinstance(each, Place)}
        texts = [each if isinstance(each, str) else values[each] for each in self.parts]
        if (length := sum(map(len, texts))) > MOST_CHARACTERS:
            raise InvalidRunInputError(
                f'The instructions of the agent "{self.agent}" have {length:,} characters with the values of this input; '
                f"the limit is {MOST_CHARACTERS:,}. Send a shorter prompt, or shorter metadata."
            )
        return "".join(texts)

    def _value(self, place: Place, run_input: RunInput) -> str:
        if place.key:
            value = run_input.metadata.get(place.key)
            if value is None:
                raise InvalidRunInputError(
                    f'"metadata" has no {place.key!r}, which the instructions of the agent "{self.agent}" contain; add it.'
                )
        elif place.name == "prompt":
            value = next((each.text for each in run_input.new_messages[::-1] if each.role == "user"), "")
        else:
            value = getattr(run_input, place.name) or ""
        return _LINE_BREAK.sub(" ", value)


def parse_instructions(agent: str, text: str, first_line: int) -> InstructionsTemplate:
    r"""The instructions of an agent. `\{{` stands for braces.

    Args:
        agent: The agent's name.
        text: The instructions as the file has them.
        first_line: The line of the file on which they begin.

    Raises:
        FileFault: something else stands between double braces.
    """
    parts: list[str | Place] = []
    end = 0
    for match in _BRACES.finditer(text):
        parts.append(text[end : match.start()])
        end = match.end()
        name, key = match.groups()
        if match[0].startswith("\\"):
            parts.append("{{")
        elif name or key:
            parts.append(Place(name or "", key or ""))
        else:
            line = first_line + text.count("\n", 0, match.start())
            shown = beginning(text[match.start() :].partition("\n")[0].partition("}}")[0], 40)
            raise FileFault(line, f"`{shown}…` is none of {PLACES}; write \\{{{{ for braces")
    return InstructionsTemplate(agent, (*parts, text[end:]))
