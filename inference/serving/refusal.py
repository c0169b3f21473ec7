"""Errors of requests that a node does not answer, with their HTTP status."""

from __future__ import annotations


class RefusedError(Exception):
    """A request that is refused: an HTTP status, and one sentence with the reason."""

    status = 500
    reason = "error"
    """Key in the counts of refused requests."""

    def __init__(self, why: str, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after


class MalformedError(RefusedError):
    """A body that cannot be read."""

    status, reason = 400, "malformed"


class UnauthorizedError(RefusedError):
    """A wrong or missing token."""

    status, reason = 401, "unauthorized"


class MisplacedError(RefusedError):
    """A request for a start or path that this node does not serve."""

    status, reason = 404, "misplaced"


class TooSlowError(RefusedError):
    """A body that does not arrive in time."""

    status, reason = 408, "slow"


class TooLargeError(RefusedError):
    """A body with more bytes than a node reads."""

    status, reason = 413, "large"


class UnfitError(RefusedError):
    """Tensors that do not fit this node."""

    status, reason = 422, "unfit"


class BusyError(RefusedError):
    """More samples wait already than the node accepts."""

    status, reason = 429, "busy"
