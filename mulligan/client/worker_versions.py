"""Workflows that outlive a deploy, where Worker Versioning is in use."""

from __future__ import annotations

from temporalio.common import AutoUpgradeVersioningOverride, VersioningOverride

from mulligan.client.settings import settings

__all__ = ["unpinned"]


def unpinned() -> VersioningOverride | None:
    """For the start of a workflow that all versions of the workers use: it moves to the current one. None: no versioning.

    A workflow's declaration cannot say so: the server refuses it from workers without a version.
    """
    return AutoUpgradeVersioningOverride() if settings().build_id else None
