"""The Python client of the HTTP interface, and what programs need to write to the delay topic
themselves.

    Client, AsyncClient     schedule, find, cancel, reschedule, fire, pause and resume messages, also
                            all of a filter; list, replay and discard dead letters; read topics; set
                            rate limits. Blocking, and for asyncio
    message(...)            a message for `schedule_many`
    headers(...)            control headers for a Kafka producer

Modules: `models` has the results and errors, `headers` the control headers; `requests`,
`dead_letters` and `servers` make the requests and choose the node for each, without I/O;
`connection` reads the address, the token and TLS; `blocking` and `asynchronous` send the
requests."""  # noqa: E501

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
