"""Problems in OpenAI's form of errors."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

from mulligan.serve.problems import Problem

_FIELD = re.compile(r'"([^"]{1,200})" ')
_CODES = {
    "agent_not_found": "model_not_found",
    "agent_not_allowed": "model_not_found",
    "unauthorized": "invalid_api_key",
}
"""OpenAI's words for ours, where it has one."""


def error_json(problem: Problem) -> dict[str, Any]:
    """A problem as OpenAI's APIs write it. `param`: the field that its sentence begins with."""
    field = _FIELD.match(problem.detail)
    kind = "server_error" if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    code = _CODES.get(problem.code, problem.code)
    param = "model" if code == "model_not_found" else field[1] if field else None
    return {"error": {"message": problem.detail, "type": kind, "param": param, "code": code}}
