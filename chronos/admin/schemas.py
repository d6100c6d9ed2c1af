"""What goes over HTTP, as types: `/openapi.json` is read off them, requests are checked by them.

A field that is absent is not the same as null. Bytes that are text are written as text, all others in base64.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

BATCH_MAX = 10_000
"""Messages in one request."""

MS = Annotated[int, Meta(ge=0, le=10**15 - 1)]
Count = Annotated[int, Meta(ge=0)]

Time = (
    Annotated[int, Meta(ge=0, le=10**15 - 1, description="Epoch milliseconds.")]
    | Annotated[
        str,
        Meta(
            description="RFC 3339 with an offset, such as 2030-01-31T09:00:00+01:00.",
            extra_json_schema={"format": "date-time"},
        ),
    ]
)
Duration = (
    Annotated[int, Meta(ge=0, le=10**15 - 1, description="Milliseconds.")]
    | Annotated[
        str,
        Meta(
            min_length=1,
            pattern=r"^([0-9]{1,15}|[0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h|d|w)|([0-9]{1,9}w)?([0-9]{1,9}d)?([0-9]{1,9}h)?"
            r"([0-9]{1,9}m)?([0-9]{1,9}s)?([0-9]{1,9}ms)?)$",
            description="A number and a unit: 250ms, 1.5s, 90s, 15m, 2h, 7d, 2w; or several of them: 1h30m.",
        ),
    ]
)
Id = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1400,
        description="1 to 1024 bytes: text, or `base64:` and the bytes in base64.",
        examples=["order-17-reminder"],
    ),
]
Base64 = Annotated[
    str, Meta(pattern=r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$", description="Bytes in base64.")
]
Instant = Annotated[
    str,
    Meta(description="RFC 3339 in UTC with milliseconds; beyond the year 9999, epoch milliseconds."),
]


class Binary(Struct, forbid_unknown_fields=True, gc=False):
    """Bytes that are not text."""

    base64: Base64


HeaderValue = str | Binary | None
HeaderValues = dict[
    Annotated[str, Meta(min_length=1, max_length=1000)], str | Binary | list[str | Binary | None] | None
]
"""Header values by name, in order; a name that is repeated has a list of values."""


class Target(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where a message is delivered, and as what."""

    topic: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}$", description="The topic.", examples=["orders"])]
    key: Annotated[str | None, Meta(description="The Kafka key of the delivered message, as text.")] = None
    key_base64: Annotated[Base64 | UnsetType, Meta(description="The key, if it is not text.")] = UNSET
    headers: Annotated[
        HeaderValues | UnsetType,
        Meta(description="Headers that are passed through. Names that start with `chronos-` are refused."),
    ] = UNSET


class Message(Struct, forbid_unknown_fields=True, kw_only=True):
    """A message to be delivered later. Give `deliver_at` or `delay`, and `value`, `value_base64` or neither (null)."""

    target: Target
    value: Annotated[str | None, Meta(description="The payload, as text; null or absent: a null payload.")] = None
    value_base64: Annotated[Base64 | UnsetType, Meta(description="The payload, if it is not text.")] = UNSET
    deliver_at: Annotated[Time | UnsetType, Meta(description="When it is due.")] = UNSET
    delay: Annotated[
        Duration | UnsetType, Meta(description="How long after the log accepted it.", examples=["90s"])
    ] = UNSET
    id: Annotated[
        Id | UnsetType, Meta(description="A name of your choice, to find, cancel or replace the message by.")
    ] = UNSET
    on_conflict: Annotated[
        Literal["reject", "replace", "ignore"] | UnsetType,
        Meta(
            description="What becomes of this message when its id is pending, or was delivered within the"
            " deduplication window: it is refused (`reject`, the default), takes the other's place, or is dropped."
        ),
    ] = UNSET
    expire_at: Annotated[
        Time | UnsetType, Meta(description="Not delivered after this time, but dead-lettered as expired.")
    ] = UNSET
    repeat: Annotated[Any, Meta(description="Reserved: not supported yet.", extra_json_schema={"not": {}})] = UNSET
    spread: Annotated[Any, Meta(description="Reserved: not supported yet.", extra_json_schema={"not": {}})] = UNSET


class Move(Struct, forbid_unknown_fields=True, kw_only=True):
    """A new time for a message: `deliver_at` or `delay`."""

    deliver_at: Annotated[Time | UnsetType, Meta(description="When it is due.")] = UNSET
    delay: Annotated[Duration | UnsetType, Meta(description="How long after the log accepted this request.")] = UNSET


class Accepted(Struct, kw_only=True, gc=False):
    """A message that the log has acknowledged."""

    id: Annotated[str, Meta(description="What the message is known by from now on.")]
    shard: Count
    offset: Annotated[int, Meta(ge=0, description="Of its record in the delay topic.")]
    due_at: Instant


class Done(Struct, kw_only=True):
    """What became of an action. `accepted`: it is in the log, but was not applied in time to say more."""

    result: Literal["cancelled", "rescheduled", "fired", "too_late", "unknown", "refused", "accepted"]
    id: str
    shard: Count
    offset: Annotated[int, Meta(ge=0, description="Of the action's record in the delay topic.")]
    detail: Annotated[str | UnsetType, Meta(description="Why it was refused.")] = UNSET


class Destination(Struct, kw_only=True, omit_defaults=True):
    """Where a message is, or was, delivered."""

    topic: str
    key: str | UnsetType = UNSET
    key_base64: str | UnsetType = UNSET
    headers: HeaderValues | UnsetType = UNSET


class Known(Struct, kw_only=True):
    """What is known of a message."""

    id: str
    state: Literal["pending", "delivered", "cancelled", "expired", "dead"]
    shard: Count
    offset: Annotated[int, Meta(ge=0, description="Of its record in the delay topic.")]
    due_at: Annotated[Instant, Meta(description="When it was asked to be delivered.")]
    planned_at: Annotated[
        Instant, Meta(description="When it is taken up: later than `due_at` for a late arrival or a retry.")
    ]
    settled_at: Annotated[Instant | None, Meta(description="When it stopped being pending, if that is remembered.")]
    accepted_at: Annotated[Instant | None, Meta(description="When the log accepted it.")] = None
    expire_at: Instant | None = None
    target: Annotated[
        Destination | None, Meta(description="Null once the message itself is gone: cancelled, or out of retention.")
    ] = None
    occurrence: Annotated[int, Meta(ge=1)] = 1
    attempt: Annotated[int, Meta(ge=1)] = 1
    value_bytes: Annotated[Count | None, Meta(description="Size of the payload; null for a null payload.")] = None


class Page(Struct, kw_only=True):
    """Pending messages in the order in which they are due."""

    messages: list[Known]
    after: Annotated[
        str | None, Meta(description="Ask with this for the next page; null when there is no more. Opaque.")
    ]


class Interval(Struct, kw_only=True, gc=False):
    """Messages pending in one interval."""

    start: Instant
    pending: Count


class Timeline(Struct, kw_only=True):
    """Pending messages per interval of time."""

    start: Instant
    end: Instant
    step_ms: Count
    pending: Annotated[int, Meta(ge=0, description="In all intervals together.")]
    intervals: list[Interval]


class Epoch(Struct, kw_only=True):
    """Who commits: as the coordinator counts, and as the progress log does."""

    role: Count
    log: Count


class Cursor(Struct, kw_only=True):
    """The position up to which a shard has settled everything."""

    due_at: Instant
    due_ms: Count
    offset: Annotated[Count | None, Meta(description="Null: everything due at that time.")]


class Lateness(Struct, kw_only=True):
    """Delivered minus due since the node started, as upper bounds; null: more than an hour, or nothing yet."""

    count: Count
    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    mean_ms: float | None


class Counters(Struct, kw_only=True):
    """How many messages ended how, since the shard began."""

    accepted: Count
    delivered: Count
    cancelled: Count
    replaced: Count
    changed: Count
    expired: Count
    dead: Count
    carried: Count
    rejected: Count
    ignored: Count
    probes: Count


class ReplicaInfo(Struct, kw_only=True):
    """One node's copy of a shard, by what it said last."""

    node: str
    role: str
    applied: Annotated[Count | None, Meta(description="Records of the progress topic applied; null: not known yet.")]
    lag: Annotated[Count | None, Meta(description="Behind the copy that is furthest, in progress records.")]


class Shard(Struct, kw_only=True):
    """One shard, by one node's copy of it."""

    shard: Count
    node: Annotated[str | None, Meta(description="Whose copy this is; null: nobody that has one answers.")]
    role: Annotated[str, Meta(description="What that copy is at the moment.")]
    master: Annotated[str | None, Meta(description="The node that is to be master; standalone: that committed last.")]
    master_since: Annotated[Instant | None, Meta(description="When it was given the role; null: standalone.")]
    replicas: Annotated[list[ReplicaInfo], Meta(description="Every node's copy; empty: standalone.")]
    epoch: Epoch
    paused: Annotated[str | None, Meta(description="Why nothing moves; null while all is well.")]
    cursor: Cursor
    pull_offset: Annotated[int, Meta(ge=0, description="Records of the delay topic applied.")]
    end_offset: Annotated[Count | None, Meta(description="Where its delay partition ends; null: no answer.")]
    lag: Annotated[Count | None, Meta(description="Records not applied yet; null: the log does not answer.")]
    applied: Annotated[int, Meta(ge=0, description="Records of the progress topic applied.")]
    progress_at: Annotated[Instant | None, Meta(description="Broker time of the last progress record.")]
    pending: Count
    next_due_at: Instant | None
    oldest_overdue_ms: Count
    lateness: Lateness
    step_p99_ms: float | None
    commits: Count
    aborts: Count
    totals: Counters
    store_bytes: Count


class Shards(Struct, kw_only=True):
    """All shards."""

    shards: list[Shard]


class NodeShard(Struct, kw_only=True):
    """A node's copy of one shard."""

    shard: Count
    role: str
    applied: Annotated[Count | None, Meta(description="Records of the progress topic applied; null: not known yet.")]
    pull_offset: Count
    role_epoch: Count


class NodeInfo(Struct, kw_only=True):
    """One process; another one than the one asked, by what it said last."""

    node: str
    cluster: str
    instance: Annotated[str, Meta(description="Which data directory it is.")]
    address: Annotated[str, Meta(description="Where other nodes reach it.")]
    version: str
    coordinator: str
    log: Annotated[str, Meta(description="`embedded` or `kafka`.")]
    delay_topic: Annotated[str, Meta(description="The topic producers write delayed messages to.")]
    ready: bool
    reasons: Annotated[list[str], Meta(description="Why it is not ready.")]
    leaving: Annotated[bool, Meta(description="It is stopping and hands over what it is master of.")]
    drained: Annotated[bool, Meta(description="It is to be master of nothing.")]
    started_at: Instant
    shards: list[NodeShard]
    now: Annotated[Instant | None, Meta(description="This machine's clock; null: another node.")] = None
    disk_free_bytes: Annotated[Count | None, Meta(description="Null: another node.")] = None


class AwayNode(Struct, kw_only=True):
    """A node that holds copies of shards, and is not there."""

    node: str
    since: Instant
    shards: Annotated[list[Count], Meta(description="What it holds copies of.")]


class RoleChange(Struct, kw_only=True):
    """One change of a shard's master."""

    at: Instant
    shard: int
    master: str | None
    previous: str | None
    epoch: Count
    why: str


class Nodes(Struct, kw_only=True):
    """The nodes of the cluster, the one asked first."""

    nodes: list[NodeInfo]
    away: Annotated[list[AwayNode], Meta(description="Nodes that are expected to come back.")]
    controller: Annotated[str | None, Meta(description="Node that gives out the roles; null: standalone.")]
    controller_epoch: Annotated[Count | None, Meta(description="Greater with every new controller.")]
    sure: Annotated[bool, Meta(description="Whether the coordinator answers at the moment.")]
    history: Annotated[list[RoleChange], Meta(description="The last changes of roles, newest first.")]


class CheckpointInfo(Struct, kw_only=True):
    """One copy of a shard's store."""

    name: str
    node: Annotated[str, Meta(description="Who made it.")]
    made_at: Instant
    applied: Annotated[int, Meta(ge=0, description="From here on it needs the progress topic.")]
    pull_offset: Annotated[int, Meta(ge=0, description="From here on it needs the delay topic.")]
    pending: Count
    digest: Annotated[str, Meta(description="Of its logical content.")]
    bytes: Count


class ShardCheckpoints(Struct, kw_only=True):
    """The checkpoints of one shard, the furthest first."""

    shard: Count
    problem: Annotated[str | None, Meta(description="Why the last attempt of this node failed.")]
    checkpoints: list[CheckpointInfo]


class CheckpointsInfo(Struct, kw_only=True):
    """The checkpoints of all shards."""

    shards: list[ShardCheckpoints]


class DigestInfo(Struct, kw_only=True):
    """What a replica's content comes to, at one progress record. Replicas with the same `applied` have the same digest."""

    shard: Count
    node: Annotated[str, Meta(description="Whose replica it is.")]
    applied: Annotated[int, Meta(ge=0, description="Records of the progress topic applied.")]
    pull_offset: Count
    cursor_at: Instant
    pending: Count
    digest: Annotated[str, Meta(description="Of its logical content. It is compared, never taken apart.")]
    remembered_ms: Annotated[
        int, Meta(ge=0, description="Settled words count for so long; replicas with another value are not comparable.")
    ]


class TransferQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where a shard goes."""

    to: Annotated[str, Meta(description="The node to hand it to.")] | UnsetType = UNSET


class Asked(Struct, kw_only=True):
    """What became of an operator's request."""

    result: Annotated[Literal["done", "accepted"], Meta(description="`accepted`: not done within 10 s.")]
    what: str


class PartitionInfo(Struct, kw_only=True):
    """Where a partition begins and ends."""

    partition: Count
    start: Annotated[int, Meta(ge=0, description="Offset of the first record kept.")]
    end: Annotated[int, Meta(ge=0, description="Offset behind the last record a consumer may see.")]


class Topic(Struct, kw_only=True):
    """A topic of the embedded log."""

    topic: str
    partitions: list[PartitionInfo]


class Topics(Struct, kw_only=True):
    """All topics of the embedded log."""

    topics: list[Topic]


class LogRecord(Struct, kw_only=True, omit_defaults=True):
    """One record of a topic. Text stands in `key` and `value`, other bytes in `key_base64` and `value_base64`."""

    partition: Count
    offset: Count
    timestamp: Instant
    key: str | UnsetType | None = UNSET
    key_base64: str | UnsetType = UNSET
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    headers: Annotated[HeaderValues, Meta(description="Values by name; a list where a name is repeated.")]


class Records(Struct, kw_only=True):
    """Records of one partition, in order."""

    records: list[LogRecord]
    next_offset: Annotated[int, Meta(ge=0, description="Where to read on.")]


class Health(Struct, kw_only=True):
    """All is well."""

    status: Literal["ok"] = "ok"


class Fault(Struct, kw_only=True, omit_defaults=True):
    """What is wrong with one field."""

    detail: str
    field: str | UnsetType = UNSET
    index: Annotated[int | UnsetType, Meta(description="Which element of the array.")] = UNSET
    reason: Annotated[str | UnsetType, Meta(description="As in the header `chronos-reason`.")] = UNSET


class Problem(Struct, kw_only=True, omit_defaults=True):
    """What went wrong (RFC 9457)."""

    type: Annotated[str, Meta(description="`urn:chronos:problem:` and one word; `about:blank` for plain HTTP errors.")]
    title: str
    status: Annotated[int, Meta(ge=400, le=599)]
    detail: str
    hint: Annotated[str | UnsetType, Meta(description="What to do about it.")] = UNSET
    errors: Annotated[list[Fault] | UnsetType, Meta(description="Field by field.")] = UNSET


# --- Queries


class NoQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Takes no parameters."""


Numbers = Annotated[str, Meta(pattern=r"^[0-9]{1,4}(,[0-9]{1,4}){0,1023}$")]
OnlyShards = Annotated[
    Numbers | UnsetType,
    Meta(
        description="Only these shards, by number with commas between, and only by what the node asked holds itself."
        " Nodes ask each other so."
    ),
]


class ShardsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to look."""

    shards: OnlyShards = UNSET


class OverviewQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Whose copies."""

    shards: OnlyShards = UNSET
    copies: Annotated[
        Literal["own", "masters"],
        Meta(description="`own`: those of the node asked, as far as it has them. `masters`: those of the masters."),
    ] = "own"


class PageQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which pending messages."""

    target: Annotated[str | UnsetType, Meta(description="Only those for this topic.")] = UNSET
    due_from: Annotated[Time | UnsetType, Meta(description="Only those due at or after this time.")] = UNSET
    due_to: Annotated[Time | UnsetType, Meta(description="Only those due before this time.")] = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000, description="Most messages of a page; it may hold fewer.")] = 100
    after: Annotated[
        Annotated[str, Meta(pattern=r"^[0-9]{1,15}-[0-9]{1,4}-[0-9]{1,19}$")] | UnsetType,
        Meta(description="From the page before."),
    ] = UNSET
    shards: OnlyShards = UNSET


class TimelineQuery(Struct, forbid_unknown_fields=True, kw_only=True, rename={"start": "from", "end": "to"}):
    """Which time, cut how."""

    start: Annotated[Time | UnsetType, Meta(description="Beginning, cut to the minute; now, if absent.")] = UNSET
    end: Annotated[Time | UnsetType, Meta(description="End; one hour after the beginning, if absent.")] = UNSET
    step: Annotated[
        Duration | UnsetType, Meta(description="Length of an interval in whole minutes; 1m or what gives 60 intervals.")
    ] = UNSET
    shards: OnlyShards = UNSET


class RecordsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to read, and how long to wait."""

    partition: Annotated[int, Meta(ge=0, le=1023)] = 0
    offset: Annotated[
        Annotated[int, Meta(ge=0, le=2**62)] | UnsetType,
        Meta(description="First record wanted; the first kept, if absent."),
    ] = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000, description="Most records of one answer.")] = 100
    wait: Annotated[Duration, Meta(description="How long to wait for a record when there is none, at most 60s.")] = "0s"
