"""The Python client.

    Client, AsyncClient     schedule, find, cancel and move messages, list and replay dead letters
                            over HTTP; blocking and for asyncio
    message(...)            a message for `schedule_many`
    headers(...)            control headers for a Kafka producer

models, connection -> requests, dead_letters -> servers (no sockets) -> blocking | asynchronous"""

from chronos.client.asynchronous import AsyncClient
from chronos.client.blocking import Client
from chronos.client.connection import SERVER
from chronos.client.dead_letters import DeadLetterFilter
from chronos.client.headers import headers
from chronos.client.models import (
    Action,
    ActionResult,
    ClientError,
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
    NotFound,
    OnConflict,
    Page,
    Refused,
    Rejected,
    Repetition,
    Result,
    Scheduled,
    ScheduleOutcome,
    ServiceFailed,
    Target,
    TargetCount,
    Unreachable,
    WholeDeadLetter,
)
from chronos.client.requests import (
    Bytes,
    Delay,
    FilterOptions,
    HeaderValue,
    MessageOptions,
    Time,
    message,
)

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
