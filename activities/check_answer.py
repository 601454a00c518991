"""Check a person's answer to the question of an MCP server. Its schema may be anything, so no workflow does it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pydantic import JsonValue, ValidationError
from temporalio import activity

from mulligan.activities.services import Services
from mulligan.wire.questions import CHECK_ANSWER, CheckAnswer, CheckedAnswer, QuestionReply
from mulligan.wire.shorten import shorten_middle


@dataclass(frozen=True)
class CheckAnswerActivity:
    """The activity `check_answer`."""

    services: Services

    @activity.defn(name=CHECK_ANSWER)
    async def check_answer(self, request: CheckAnswer) -> CheckedAnswer:
        """Return the answer as the server gets it, or why it is refused."""
        schema = request.question.answer_schema or {}
        try:
            content = parse_answer(schema, request.text)
            QuestionReply(action="accept", content=content)
        except ValidationError:
            return CheckedAnswer(refused="The answer is not an object of plain values.")
        except ValueError as error:
            return CheckedAnswer(refused=str(error))
        faults = await self.services.mcp_servers.faults_by(schema, content)
        if faults:
            shortened = [(shorten_middle(path, 200), shorten_middle(says, 500)) for path, says in faults[:10]]
            listed = "; ".join(f"{path}: {says}" if path else says for path, says in shortened)
            return CheckedAnswer(refused=f"The answer does not match the question's schema: {listed}.")
        return CheckedAnswer(content=content)


def parse_answer(schema: dict[str, JsonValue], text: str) -> dict[str, JsonValue]:
    """A person's answer as the object that a question's schema describes, with the schema's defaults; not validated yet.

    Where the schema has one field, its value alone is an answer too.

    Raises:
        ValueError: it is not such an object; one sentence with the fields.
    """
    fields = schema.get("properties")
    fields = fields if isinstance(fields, dict) else {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if not isinstance(value, dict) and len(fields) == 1:
        [(name, field)] = fields.items()
        is_text = isinstance(field, dict) and field.get("type") == "string"
        value = {name: text if is_text else value}
    names = ", ".join(f'"{name}"' for name in fields)
    if not isinstance(value, dict):
        raise ValueError(f"Answer with a JSON object with the fields {names}." if names else 'Answer with "{}".')
    if unknown := [name for name in value if name not in fields]:
        raise ValueError(f'The question has no field "{unknown[0][:100]}"; it has: {names or "none"}.')
    for name, field in fields.items():
        if name not in value and isinstance(field, dict) and "default" in field:
            value[name] = field["default"]
    return value
