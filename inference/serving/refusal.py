"""What a node says to a request that it does not answer."""

from __future__ import annotations


class RefusedError(Exception):
    """A request that is not answered: an HTTP status, and one sentence that says why."""

    status = 500
    reason = "error"
    """For the counts of refused requests."""

    def __init__(self, why: str, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after


class MalformedError(RefusedError):
    """A body that cannot be read."""

    status, reason = 400, "malformed"


class UnauthorizedError(RefusedError):
    """A wrong token, or none."""

    status, reason = 401, "unauthorized"


class MisplacedError(RefusedError):
    """A question that this node does not take."""

    status, reason = 404, "misplaced"


class TooSlowError(RefusedError):
    """A body that does not come."""

    status, reason = 408, "slow"


class TooLargeError(RefusedError):
    """A body of more bytes than a node reads."""

    status, reason = 413, "large"


class UnfitError(RefusedError):
    """Tensors that are not what this node takes."""

    status, reason = 422, "unfit"


class BusyError(RefusedError):
    """More waits already than the node takes on."""

    status, reason = 429, "busy"
