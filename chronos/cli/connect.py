"""The client of the command line: it gives up sooner than a program would, a person can try again."""

from chronos.client import Client

RETRIES = 1
"""Repetitions of a call that got no answer."""


def connect(server: str) -> Client:
    """A client for a service."""
    return Client(server, retries=RETRIES)
