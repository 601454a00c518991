"""The pages of experiments: the newest, and the table of one. They are for operators: rows are of all tenants."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from mulligan.client.experiments.compare_tables import means, means_by_version, side_by_side
from mulligan.client.experiments.experiment_content import ExperimentError
from mulligan.client.experiments.read_experiments import list_experiments, read_experiment
from mulligan.features.feature_parts import FeaturePages
from mulligan.serve.console.rendering import page
from mulligan.serve.console.sessions import Session
from mulligan.serve.console.signed_in import PREFIX
from mulligan.serve.console.waiting_counts import Counted
from mulligan.serve.http_protocol import Serving
from mulligan.serve.problems import Problem
from mulligan.wire.experiments import Row

SHOWN = 50

_pages = APIRouter(prefix=f"{PREFIX}/experiments", include_in_schema=False)
PAGES = FeaturePages(router=_pages, link=(f"{PREFIX}/experiments", "Experiments"))


@_pages.get("")
async def show_experiments(request: Request, runs: Serving, session: Counted) -> Response:
    """The newest experiments."""
    _check(session)
    found = await list_experiments(runs.client, SHOWN)
    return page(request, session, "experiments.html", title="Experiments", experiments=found)


@_pages.get("/{name}")
async def show_experiment(name: str, request: Request, runs: Serving, session: Counted) -> Response:
    """The table of an experiment: each row leads to both runs."""
    _check(session)
    try:
        experiment = await read_experiment(runs.client, name)
    except ExperimentError as error:
        raise Problem(409, "unreadable_experiment", str(error)) from None
    if experiment is None:
        raise Problem(
            404, "path_not_found", f"There is no experiment {name[:100]!r}; the page of experiments lists them."
        )
    rows = [Row.model_validate(row) for row in experiment["rows"]]
    of_versions = means_by_version(rows)
    values: dict[str, Any] = {
        "experiment": experiment,
        "rows": rows,
        "versions": [*of_versions],
        "lines": side_by_side(rows),
    }
    values["means"] = of_versions or ({"": means(rows)} if rows else {})
    return page(request, session, "experiment.html", title=name, **values)


def _check(session: Session) -> None:
    if not session.caller.operator:
        raise Problem(
            403,
            "operators_only",
            f"Experiments are for operators, and {session.caller.name!r} is none: sign in with a token with `*`.",
        )
