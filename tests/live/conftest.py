"""The lab, with its worker, which these tests share."""

from __future__ import annotations

from tests.support.lab_fixtures import (  # noqa: F401 - fixtures
    busy_workers_are_not_lost,
    chain_server,
    lab,
    open_runs_end_with_their_module,
)
