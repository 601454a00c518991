"""All routes of `mulligan serve`, as they are declared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi.routing import APIRoute, APIRouter

from mulligan.serve.create_app import PROTOCOLS


def _routes_of(router: Any) -> Iterator[APIRoute]:
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield route
        elif isinstance(inner := getattr(route, "original_router", None), APIRouter):
            yield from _routes_of(inner)


SERVED_ROUTES = {
    f"{method} {route.path}": route
    for protocol in PROTOCOLS
    for route in _routes_of(protocol.router)
    for method in route.methods or ()
}
"""By method and path: `GET /api/runs`."""
