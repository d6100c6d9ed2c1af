"""The Python client.

Client, AsyncClient     schedule, find, cancel and move messages over HTTP; the same verbs, blocking and for asyncio
message(...)            a message for `schedule_many`
headers(...)            control headers for a Kafka producer

times, models, errors -> requests (no sockets) -> blocking | asynchronous
"""

from chronos.client.address import SERVER
from chronos.client.asynchronous import AsyncClient
from chronos.client.blocking import Client
from chronos.client.errors import ClientError, NotFound, Refused, Rejected, ServiceFailed, Unreachable
from chronos.client.headers import headers
from chronos.client.models import (
    Action,
    ActionResult,
    MessageInfo,
    MessageState,
    OnConflict,
    Page,
    Result,
    Scheduled,
    Target,
)
from chronos.client.requests import Bytes, HeaderValue, MessageOptions, message
from chronos.client.times import Delay, Time

__all__ = [
    "SERVER",
    "Action",
    "ActionResult",
    "AsyncClient",
    "Bytes",
    "Client",
    "ClientError",
    "Delay",
    "HeaderValue",
    "MessageInfo",
    "MessageOptions",
    "MessageState",
    "NotFound",
    "OnConflict",
    "Page",
    "Refused",
    "Rejected",
    "Result",
    "Scheduled",
    "ServiceFailed",
    "Target",
    "Time",
    "Unreachable",
    "headers",
    "message",
]
