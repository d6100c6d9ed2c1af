"""Chronos delivers messages later: a producer says when a message is due, Chronos keeps it on disk and hands it
to its target topic at that time, exactly once, whichever machines fail in between.

    chronos.Client, chronos.AsyncClient     schedule, find and cancel messages over HTTP
    chronos.headers(...)                    control headers for a Kafka producer of your own
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chronos.client import AsyncClient, Client, headers, message

__version__ = "0.1.0"

__all__ = ["AsyncClient", "Client", "__version__", "headers", "message"]


def __getattr__(name: str) -> Any:
    """What the library offers, imported once it is asked for."""
    if name in ("AsyncClient", "Client", "headers", "message"):
        from chronos import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
