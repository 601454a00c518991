"""The live tests that `make test` runs: what the product promises, on one real server."""

from __future__ import annotations

from tests.support.command_fixtures import environment, mulligan  # noqa: F401 - fixtures
from tests.support.lab_fixtures import busy_workers_are_not_lost, lab, open_runs_end_with_their_module  # noqa: F401 - fixtures
