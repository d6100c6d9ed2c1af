"""Results of the client: the JSON objects of the HTTP interface, with times as `datetime`."""

from datetime import datetime
from typing import Any, Literal

import msgspec

OnConflict = Literal["reject", "replace", "ignore"]
"""Policy for a message whose id is taken."""

Action = Literal["schedule", "replace", "reschedule", "cancel", "fire-now"]
"""Values of the header `chronos-action`."""

MessageState = Literal["pending", "delivered", "cancelled", "expired", "dead"]

ActionResult = Literal["cancelled", "rescheduled", "fired", "too_late", "unknown", "refused", "accepted"]


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """A message that the log has acknowledged."""

    id: str
    """The given id, or the generated one."""
    shard: int
    offset: int
    """Offset of its record in the delay topic."""
    due_at: datetime
    applied: bool = False
    """True once the shard has accepted the message; only `schedule(wait=...)` and `confirm` find out."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a cancel, reschedule or fire. True if the message was cancelled, rescheduled or fired."""

    result: ActionResult
    """`accepted`: the action is in the log, but was not applied in time."""
    id: str
    shard: int
    offset: int
    """Offset of the action's record in the delay topic."""
    detail: str | None = None
    """Why the action was refused."""

    def __bool__(self) -> bool:
        return self.result in ("cancelled", "rescheduled", "fired")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message is, or was, delivered."""

    topic: str
    key: str | None = None
    """The Kafka key, if it is UTF-8."""
    key_base64: str | None = None
    """The Kafka key, if it is not UTF-8."""
    headers: dict[str, Any] = msgspec.field(default_factory=dict)
    """Values by name: text, None, `{"base64": ...}`, or a list of these for a name that is repeated."""


class MessageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """State, times and target of a message."""

    id: str
    state: MessageState
    shard: int
    offset: int
    """Offset of its record in the delay topic."""
    due_at: datetime
    """The requested due time."""
    planned_at: datetime
    """Time of the next delivery: later than `due_at` for a late arrival or a retry."""
    settled_at: datetime | None = None
    """When it was settled; None: it is pending, or the time is not kept."""
    accepted_at: datetime | None = None
    """When the log accepted it."""
    expire_at: datetime | None = None
    target: Target | None = None
    """None once the message itself is deleted."""
    occurrence: int = 1
    attempt: int = 1
    value_bytes: int | None = None
    """Size of the payload; None for a null payload."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of pending messages, in the order of their due times."""

    messages: list[MessageInfo]
    after: str | None
    """Page key of the next page; None on the last page."""
