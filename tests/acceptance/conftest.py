"""The commands as a user runs them."""

from __future__ import annotations

from tests.support.command_fixtures import environment, installed_mulligan, mulligan, worker  # noqa: F401 - fixtures
from tests.support.lab_fixtures import open_runs_end_with_their_module  # noqa: F401 - a fixture
