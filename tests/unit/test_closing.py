"""Closing a consumer of the Kafka client, which may never return."""

from __future__ import annotations

import threading

import pytest

from chronos.adapters.kafka.closing import Closer


class Client:
    """A client of another library: its `close` waits for the event, and then raises the error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_close = threading.Event()
        self.closed = threading.Event()
        self._error = error

    def close(self) -> None:
        """Close it."""
        self.may_close.wait(30)
        self.closed.set()
        if self._error is not None:
            raise self._error


def test_a_client_that_does_not_close_is_abandoned_and_counted() -> None:
    """It may still close later."""
    closer, client = Closer(timeout_s=0.01), Client()
    closer.close(client)
    assert (closer.abandoned, client.closed.is_set()) == (1, False)
    client.may_close.set()
    assert client.closed.wait(30)


def test_a_client_that_closes_is_waited_for_and_its_error_raised() -> None:
    """As if it were closed without a thread."""
    closer, client = Closer(timeout_s=30), Client(RuntimeError("closed before"))
    client.may_close.set()
    with pytest.raises(RuntimeError, match="closed before"):
        closer.close(client)
    assert (closer.abandoned, client.closed.is_set()) == (0, True)
