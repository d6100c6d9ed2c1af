"""Chronos, a delayed-message service on Kafka: a producer sets when a message is due, Chronos keeps
it on disk and writes it to its target topic at that time, exactly once, even if machines fail in
between. Besides `__version__`, the package itself has only the names of the Python client:

    chronos.Client, chronos.AsyncClient     schedule, find and cancel messages over HTTP
    chronos.message(...)                    a message for `schedule_many`
    chronos.headers(...)                    control headers for a Kafka producer
    chronos.client                          the errors and the types of results
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chronos.client import AsyncClient, Client, headers, message

__version__ = "0.1.0"

__all__ = ["AsyncClient", "Client", "__version__", "headers", "message"]


def __getattr__(name: str) -> Any:
    """The public names of the client, imported on first use: the command line starts without
    them."""
    if name in ("AsyncClient", "Client", "headers", "message"):
        from chronos import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"Any", "TYPE_CHECKING"})
