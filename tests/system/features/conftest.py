"""Live tests of whole features, which `make test-system` runs, so that `make test` stays short.

They share the lab of tests/live, with its worker: a process has one, as two would share a task queue, and each would flush its
own spans only. Tests beside this folder start workers of their own.
"""

from __future__ import annotations

from tests.support.lab_fixtures import chain_server, lab, open_runs_end_with_their_module  # noqa: F401 - fixtures
