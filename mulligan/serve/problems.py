"""What a request cannot have, and why: one sentence that says what to change. Each protocol has its own form for it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel
from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client.connect import explain_unreadable_data
from mulligan.client.origins.resume_run import AlreadyResumedError, PromptNeededError
from mulligan.client.origins.run_state import NoWorkerError, ResumeError, RunNotFoundError, UndoOpenError
from mulligan.client.send_update import RunEndedError, UpdateTimeoutError, UpdateTooLargeError
from mulligan.errors import DeclarationError, InvalidRunInputError, UpdateRefusedError
from mulligan.serve.clean_text import without_folders

RETRY_AFTER = 2
"""Seconds after which a client may try again when Temporal, or a worker, does not answer."""
_UNREACHABLE = {
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.UNKNOWN,  # a connection that breaks off
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.FAILED_PRECONDITION,
}


_REPEATED = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS}
"""With 5xx, the statuses at which SDKs send a request again by themselves."""


class ProblemDetails(BaseModel):
    """Why a request is not served, by RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    """A sentence that says what to change."""
    code: str
    """A word for programs, such as `run_not_found`."""
    fields: list[str] | None = None
    """With `trusted_only`: the fields that a customer may not send."""


class Problem(Exception):
    """The reason why a request is not served.

    Attributes:
        status: the HTTP status.
        code: a word for programs, such as `run_not_found`. It never changes.
        detail: a sentence for people, with what to do.
        headers: more headers of the response.
        fields: the fields that the caller may not send.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        headers: dict[str, str] | None = None,
        *,
        fields: list[str] | None = None,
    ) -> None:
        # It may quote the request, whose JSON can have halves of surrogate pairs: no response could be made of them.
        detail = without_folders(detail.encode("utf-8", "replace").decode())
        super().__init__(detail)
        self.status, self.code, self.detail, self.fields = status, code, detail, fields
        self.headers = dict(headers or {})
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.headers.setdefault("Retry-After", str(RETRY_AFTER))

    def to_json(self) -> dict[str, Any]:
        """The problem by RFC 9457, with the extension members `code` and, where there are any, `fields`."""
        title = HTTPStatus(self.status).phrase
        details = ProblemDetails(title=title, status=self.status, detail=self.detail, code=self.code)
        return {**details.model_dump(exclude_none=True), **({"fields": self.fields} if self.fields else {})}


def no_such_run(run_id: str) -> Problem:
    """The problem of a run that does not exist, or that the caller may not see: both look the same."""
    return Problem(404, "run_not_found", f"There is no run {run_id[:200]!r}; GET /api/runs lists the runs.")


def id_taken(run_id: str) -> Problem:
    """The problem of a new run whose id another run has."""
    return Problem(409, "id_taken", f"There is a run {run_id!r} already; choose another id.")


def problem_of_state(error: ResumeError, status: int, code: str) -> Problem:
    """The problem of a run from whose state nothing can begin. `status`, `code`: where the error does not say more."""
    match error:
        case RunNotFoundError():
            status, code = 404, "run_not_found"
        case NoWorkerError():
            status, code = 503, "no_worker"
        case UndoOpenError():
            status, code = 409, "being_undone"
        case PromptNeededError():
            status, code = 422, "prompt_needed"
        case AlreadyResumedError():
            where = {"Location": f"/api/runs/{quote(error.workflow_id, safe='')}"}
            return Problem(409, "already_resumed", str(error), where)
    return Problem(status, code, str(error))


def after_start(problem: Problem, run_id: str | None) -> Problem:
    """The problem of a request that has started the run (None: none), with a status at which no client sends it again."""
    is_repeated = problem.status in _REPEATED or problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    if run_id is None or not is_repeated:
        return problem
    return Problem(
        422,
        problem.code,
        f"The run {run_id!r} was started: do not send this request again. GET /api/runs/{run_id} reads the run. "
        f"Its answer cannot be returned here: {problem.detail}",
    )


def problem_of(error: Exception) -> Problem:
    """The problem that an exception of the run's client means. Any other exception is the server's own fault."""
    match error:
        case Problem():
            return error
        case InvalidRunInputError():
            return Problem(422, "invalid_input", error.message)
        case UpdateTooLargeError():
            return Problem(413, "too_large", error.message)
        case UpdateRefusedError():
            return _problem_of_refusal(error)
        case RunEndedError():
            return Problem(409, "run_ended", "The run has ended; continue it in a new run: POST /api/runs/{id}/resume.")
        case UpdateTimeoutError():
            return Problem(
                503,
                "unavailable" if error.pushed_back else "no_worker",
                f"{error} The run may or may not have received it: read the run, then send this again.",
            )
        case RPCError():
            return _problem_of_rpc(error)
        case WorkflowQueryFailedError():
            return Problem(409, "not_an_agent", "The workflow does not answer this: it has no agent of Mulligan.")
        case DeclarationError():
            return Problem(
                503, "unavailable", "The server cannot connect to Temporal: a setting is wrong; see its log."
            )
        case RuntimeError() if "connect" in str(error).lower():  # of a lazy client, whose error has no type
            return Problem(503, "unavailable", "Temporal does not answer now. Try again.")
    if explain_unreadable_data(error):
        return Problem(
            503, "unreadable", "The run's data cannot be decrypted, or read from its storage, by this server."
        )
    return Problem(500, "internal_error", "The server failed at this request; its log has the reason.")


def _problem_of_refusal(error: UpdateRefusedError) -> Problem:
    if error.role is not None:
        return Problem(403, "role_needed", error.message)
    if error.agent is not None:
        return Problem(403, "foreign_agent", error.message)
    return Problem(409, "refused", error.message)


def _problem_of_rpc(error: RPCError) -> Problem:
    if error.status == RPCStatusCode.NOT_FOUND:
        return Problem(404, "run_not_found", "There is no such run; GET /api/runs lists the runs.")
    if error.status == RPCStatusCode.INVALID_ARGUMENT:
        return Problem(422, "invalid_input", f"Temporal refuses the request: {error.message}.")
    if error.status in _UNREACHABLE:
        return Problem(503, "unavailable", "Temporal, or a worker of the run, does not answer now. Try again.")
    return Problem(502, "temporal_error", f"Temporal refuses the request ({error.status.name}).")


KNOWN_ERRORS: tuple[type[Exception], ...] = (
    Problem,
    InvalidRunInputError,
    UpdateRefusedError,
    RunEndedError,
    UpdateTimeoutError,
    RPCError,
    WorkflowQueryFailedError,
    DeclarationError,
    RuntimeError,
    ValueError,
)
"""The exceptions that `problem_of` may know."""
