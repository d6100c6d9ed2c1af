"""The Python client.

Client, AsyncClient     schedule, find, cancel and move messages, list and replay dead letters over HTTP; blocking and for asyncio
message(...)            a message for `schedule_many`
headers(...)            control headers for a Kafka producer

times, models, errors -> requests, dead_letters, registry -> servers (no sockets) -> blocking | asynchronous
"""

from chronos.client.address import SERVER
from chronos.client.asynchronous import AsyncClient
from chronos.client.blocking import Client
from chronos.client.dead_letters import DeadLetterFilter
from chronos.client.errors import ClientError, NotFound, Refused, Rejected, ServiceFailed, Unreachable
from chronos.client.headers import headers
from chronos.client.models import (
    Action,
    ActionResult,
    DeadLetter,
    DeadLetterCount,
    DeadLetterRefusal,
    DeadLetterTotals,
    Job,
    JobAction,
    JobState,
    LatePolicy,
    MessageInfo,
    MessageState,
    OnConflict,
    Page,
    Repetition,
    Result,
    Scheduled,
    ScheduleOutcome,
    Target,
    TargetCount,
    WholeDeadLetter,
)
from chronos.client.requests import Bytes, FilterOptions, HeaderValue, MessageOptions, message
from chronos.client.times import Delay, Time

__all__ = [
    "SERVER",
    "Action",
    "ActionResult",
    "AsyncClient",
    "Bytes",
    "Client",
    "ClientError",
    "DeadLetter",
    "DeadLetterCount",
    "DeadLetterFilter",
    "DeadLetterRefusal",
    "DeadLetterTotals",
    "Delay",
    "FilterOptions",
    "HeaderValue",
    "Job",
    "JobAction",
    "JobState",
    "LatePolicy",
    "MessageInfo",
    "MessageOptions",
    "MessageState",
    "NotFound",
    "OnConflict",
    "Page",
    "Refused",
    "Rejected",
    "Repetition",
    "Result",
    "ScheduleOutcome",
    "Scheduled",
    "ServiceFailed",
    "Target",
    "TargetCount",
    "Time",
    "Unreachable",
    "WholeDeadLetter",
    "headers",
    "message",
]
