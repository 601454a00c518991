"""What the activities about batches need of a worker: the provider of a model, and the content storage."""

from __future__ import annotations

from temporalio.exceptions import ApplicationError

from mulligan.activities.models.protocol import AnswersInBatches
from mulligan.activities.services import Services
from mulligan.client.content_store import ContentStore


def batch_provider(services: Services, model: str) -> AnswersInBatches:
    """The part of a model's provider that answers in batches.

    Raises:
        ApplicationError: this worker does not know its endpoint. Temporal retries: another one may know it.
    """
    part = services.providers.batch_of(model)
    if part is None:
        raise ApplicationError(f"This worker cannot call {model}: it does not know the endpoint.", type="NoEndpoint")
    return part


def contents_for(services: Services, tenant: str | None) -> ContentStore:
    """The content storage of a tenant.

    Raises:
        ApplicationError: this worker has none. Temporal retries: another one may have it.
    """
    if services.contents is None:
        raise ApplicationError(
            "This worker has no content storage, which requests in batches need; set MULLIGAN_CONTENT_DIR or "
            "MULLIGAN_EXTERNAL_STORAGE.",
            type="NoContentStorage",
        )
    return services.contents.of(tenant)
