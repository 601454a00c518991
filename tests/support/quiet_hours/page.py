"""The page that the feature adds to the console."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from mulligan.feature import FeaturePages
from mulligan.serve.console.signed_in import Viewing

router = APIRouter(prefix="/console/quiet-hours", include_in_schema=False)


@router.get("")
async def show_quiet_hours(session: Viewing) -> HTMLResponse:
    return HTMLResponse(f"<h1>Quiet hours</h1><p>{'An operator' if session.caller.operator else 'Somebody'} looks.</p>")


PAGES = FeaturePages(router=router, link=("/console/quiet-hours", "Quiet hours"))
