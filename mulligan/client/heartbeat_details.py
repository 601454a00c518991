"""The details of an activity's last heartbeat, which any program may have written."""

from __future__ import annotations

import logging
from typing import Any

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client

_log = logging.getLogger(__name__)


async def heartbeat_details(client: Client, activity: PendingActivityInfo) -> list[Any]:
    """The details; none if they cannot be decoded here: a worker in another language, or with other keys, has sent them."""
    try:
        return await client.data_converter.decode(list(activity.heartbeat_details.payloads))
    except Exception as error:  # noqa: BLE001 - converters, codecs and storage raise what they like
        _log.debug("A heartbeat of %s cannot be decoded: %r", activity.activity_type.name, error)
        return []
