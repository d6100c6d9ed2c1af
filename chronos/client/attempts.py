"""The attempts at one request, and the pauses between them."""

import random
import time

from chronos.client.errors import ClientError
from chronos.client.requests import Request

BACK_OFF_S = 0.1
"""Wait before the first repetition; it doubles, and a random half of it is left out."""


def check_open(closed: bool) -> None:
    """RuntimeError if the client of the request was closed."""
    if closed:
        raise RuntimeError("this client is closed; make another one")


class Attempts:
    """The one deadline of a call, and when it may be tried again."""

    def __init__(self, request: Request, timeout_s: float, retries: int) -> None:
        self._ends_s = time.monotonic() + timeout_s + request.wait_s
        self._left = retries if request.repeatable else 0
        self._wait_s = BACK_OFF_S
        self._problem: ClientError | None = None

    @property
    def left_s(self) -> float:
        """Time until the deadline; never zero, so that it can be given to a socket."""
        return max(0.05, self._ends_s - time.monotonic())

    @property
    def is_in_time(self) -> bool:
        """True before the deadline."""
        return time.monotonic() < self._ends_s

    def next_in_s(self, failure: ClientError, *, answered: bool) -> float:
        """How long to wait before the next attempt; raises when there is none.

        What the service answered is raised rather than a later attempt's silence: it has the reason.
        """
        if answered:
            self._problem = failure
        if self._left <= 0 or self._wait_s >= self._ends_s - time.monotonic():
            raise self._problem or failure
        self._left -= 1
        wait_s, self._wait_s = self._wait_s, 2 * self._wait_s
        return wait_s * random.uniform(0.5, 1.0)
