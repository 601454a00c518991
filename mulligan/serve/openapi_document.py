"""The OpenAPI document at `/api/openapi.json`: what FastAPI knows of the routes, with what all of them have in common."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from mulligan.run_input import USER_CHARS
from mulligan.serve.caller_rights import FIELDS, Least, least_of_route
from mulligan.serve.security import TRUSTED_HEADER, USER_HEADER

Json = dict[str, Any]

NO_SECURITY: Json = {"security": []}
"""The `openapi_extra` of a route that needs no token."""
_REFS = "#/components/{}/{}"
_BEARER = (
    "A token of MULLIGAN_SERVE_TOKENS. A server without tokens, which listens on a loopback address only, needs none."
)
_OWN_SIGN_IN = "Whatever the sign-in of this server reads: most often a token, or a cookie in its place."
_USER = {
    "name": USER_HEADER,
    "in": "header",
    "description": "The customer whose request it is, within the tenant of its token: it has a customer's rights.",
    "schema": {"type": "string", "minLength": 1, "maxLength": USER_CHARS},
}
_TRUSTED = {
    "name": TRUSTED_HEADER,
    "in": "header",
    "description": f"`true`: the request keeps the rights of its token; {USER_HEADER} is only for whom it is sent.",
    "schema": {"type": "string", "enum": ["true"]},
}
CALLERS = "x-mulligan-callers"
"""Of an operation, and of a field: who may use it. Customers may use what does not have it."""
_DESCRIPTION = """Durable agents: start runs, watch them, and reach them.

The id of a run may contain slashes, in a path too. `/v1` is OpenAI's API and `/mcp` is MCP: they are described elsewhere."""


class DocumentedApplication(FastAPI):
    """A FastAPI application whose document also has the security schemes, and models that a route reads by itself.

    Args:
        models: Of bodies that no parameter of a route names.
        security: Who may call: with `tokens`, by an own `sign-in`, or `anybody`.
    """

    def __init__(self, *, models: Iterable[type[BaseModel]], security: str, **options: Any) -> None:
        super().__init__(title="Mulligan", description=_DESCRIPTION, version=version("mulligan"), **options)
        self._models, self._security = models, security

    def openapi(self) -> Json:
        """The document, which is made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            components = document["components"]
            _add_models(components["schemas"], self._models)
            _add_callers(document)
            components["securitySchemes"] = {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": _OWN_SIGN_IN if self._security == "sign-in" else _BEARER,
                }
            }
            components["parameters"] = {"user": _USER, "trusted": _TRUSTED}
            document["security"] = [{"bearer": []}, *([] if self._security == "tokens" else [{}])]
            for operation in (each for path in document["paths"].values() for each in path.values()):
                if "security" not in operation:
                    more = [{"$ref": _REFS.format("parameters", name)} for name in components["parameters"]]
                    operation.setdefault("parameters", []).extend(more)
        return self.openapi_schema or {}


def _add_models(schemas: Json, models: Iterable[type[BaseModel]]) -> None:
    """Add the schemas of models, and those that they refer to, unless a route has them already."""
    template = _REFS.format("schemas", "{model}")
    _, described = models_json_schema([(model, "validation") for model in models], ref_template=template)
    for name, schema in described["$defs"].items():
        schemas.setdefault(name, schema)


def _add_callers(document: Json) -> None:
    """Say of operations and of the fields of requests for whom they are, by caller_rights.py."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _mark(operation, least_of_route(method.upper(), path))
    for name, fields in FIELDS.items():
        for field, schema in document["components"]["schemas"].get(name, {}).get("properties", {}).items():
            _mark(schema, fields.get(field, "operator"))


def _mark(described: Json, least: Least) -> None:
    if least not in ("anyone", "customer"):
        described[CALLERS] = least
