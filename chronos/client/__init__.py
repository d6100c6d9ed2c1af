"""The Python client: `Client` and `AsyncClient` over HTTP, and control headers for a Kafka producer."""

from chronos.client.client import (
    SERVER,
    AsyncClient,
    Bytes,
    Client,
    ClientError,
    MessageInfo,
    NotFound,
    Refused,
    Result,
    Scheduled,
    ServiceFailed,
    Target,
    Unreachable,
    headers,
    message,
)

__all__ = [
    "SERVER",
    "AsyncClient",
    "Bytes",
    "Client",
    "ClientError",
    "MessageInfo",
    "NotFound",
    "Refused",
    "Result",
    "Scheduled",
    "ServiceFailed",
    "Target",
    "Unreachable",
    "headers",
    "message",
]
