"""The types of the HTTP interface: requests are checked against them, answers are made of them, and
`/openapi.json` is generated from them.

Where the type of a field has `UnsetType`, an absent field differs from null. Bytes are written as
text if they are UTF-8, and in base64 otherwise; an id that begins with `base64:` is written in
base64 too."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from chronos.core.message import REASON_LABELS
from chronos.core.rates import PATTERN
from chronos.core.series import CRON_CHARACTERS_MAX
from chronos.core.shard.parsing import TIMES_MAX
from chronos.core.shard.rules import ATTEMPTS_MAX, TOPIC_NAME
from chronos.core.timefmt import DURATION_PATTERN, MS_MAX, duration_advice

BATCH_MAX = 10_000
"""Messages in one request."""

FAULTS_MAX = 100
"""Errors of one request that are listed; the others are counted."""

DEAD_CASES_MAX = 10
"""Cases of recent dead letters that are listed."""

HEADER_NAME_MAX = 1_000
"""Longest name of a header, in characters."""

_Q = "[A-Za-z0-9+/]{4}"
_ONE, _TWO = "[A-Za-z0-9+/]{2}==", "[A-Za-z0-9+/]{3}="

TIME_PATTERN = "^(19[7-9]|[2-9][0-9]{2})[0-9]-"
"""From 1970 on."""
BASE64_PATTERN = f"^({_Q})*({_ONE}|{_TWO})?$"
ID_CHARACTERS_MAX = len("base64:") + 1_368
"""Longest id in a request: 1,024 bytes in base64."""
TOPIC_PATTERN = rf"^(?!\.{{1,2}}$){TOPIC_NAME.pattern}$"
RATE_PATTERN = f"^{PATTERN.pattern}$"
HEADER_NAME_PATTERN = r"^((?![Cc][Hh][Rr][Oo][Nn][Oo][Ss][-_])[^\x00]+|chronos-(id|due-at|source|occurrence|attempt|reason|detail|replayed)$)"  # noqa: E501
"""Receipt headers of an earlier delivery are dropped, so a consumer may schedule a message
again."""
SHARDS_PATTERN = r"^[0-9]{1,4}(,[0-9]{1,4}){0,1023}$"
HEADER_CONDITION_PATTERN = "^[^=]+="
PAGE_KEY_MAX = 24_000
"""Characters of a page key: two offsets for each of 1,024 partitions, sealed."""
ADDRESS_PATTERN = r"^https?://[0-9A-Za-z_.~%\[\]:-]+(/[0-9A-Za-z_.~%/:-]*)?$"
"""The URL of a node, without credentials."""
INSTANT_PATTERN = (
    r"^([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z|[0-9]{15,16})$"
)
POSITION_PATTERN = r"^[0-9]{1,10}:[0-9]{1,19}$"
"""The position of a record in its topic: partition:offset."""

PATTERN_TEXTS = {
    DURATION_PATTERN: f"is not a duration; {duration_advice('')}",
    BASE64_PATTERN: "is not base64",
    TOPIC_PATTERN: "is not a topic name: 1 to 249 letters, digits, '.', '_' and '-'",
    RATE_PATTERN: "is not the name of a topic, nor a pattern like orders.*",
    SHARDS_PATTERN: "is not a list of shard numbers, such as 0,3,7",
    HEADER_CONDITION_PATTERN: "is not NAME=VALUE",
    ADDRESS_PATTERN: "is not the URL of a node without credentials, such as http://chronos-1:7700",
    POSITION_PATTERN: "is not a position; write partition:offset, such as 0:17",
}
"""Error texts for values that do not match a pattern; no error shows a regular expression."""

Count = Annotated[int, Meta(ge=0)]
ShardNumber = Annotated[int, Meta(ge=0, le=1023, title="shard", description="Number of a shard.")]

Time = (
    Annotated[
        int,
        Meta(
            ge=0,
            title="epoch ms",
            description="Epoch milliseconds.",
            extra_json_schema={"maximum": MS_MAX},
        ),
    ]
    | Annotated[
        str,
        Meta(
            title="time",
            description=(
                "RFC 3339 with an offset, from 1970 on, such as 2030-01-31T09:00:00+01:00. Seconds "
                "may be left out."
            ),
            extra_json_schema={"format": "date-time", "pattern": TIME_PATTERN},
        ),
    ]
)
Duration = (
    Annotated[int, Meta(ge=0, le=MS_MAX, title="ms", description="Milliseconds.")]
    | Annotated[
        str,
        Meta(
            pattern=DURATION_PATTERN,
            title="duration",
            description=(
                "A number and a unit: 250ms, 1.5s, 90s, 15m, 2h, 7d, 2w; or several: 1h30m; or ISO "
                "8601 without years and months: PT1M30.5S."
            ),
        ),
    ]
)
Delay = (
    Annotated[
        int,
        Meta(
            ge=0,
            title="ms",
            description="Milliseconds: 0, or at least 1000. A smaller number needs a unit.",
            extra_json_schema={"maximum": MS_MAX},
        ),
    ]
    | Annotated[
        str,
        Meta(
            pattern=DURATION_PATTERN,
            title="duration",
            description=(
                "A number and a unit: 250ms, 1.5s, 90s, 15m, 2h, 7d, 2w; or several: 1h30m; or ISO "
                "8601 without years and months: PT1M30.5S."
            ),
        ),
    ]
)
Id = Annotated[
    str,
    Meta(
        title="id",
        min_length=1,
        description="1 to 1,024 bytes: UTF-8 text, or `base64:` and the bytes in base64.",
        examples=["order-17-reminder"],
        extra_json_schema={"maxLength": ID_CHARACTERS_MAX},
    ),
]
Base64 = Annotated[
    str, Meta(pattern=BASE64_PATTERN, title="base64", description="Bytes in base64.")
]
TopicName = Annotated[
    str,
    Meta(
        pattern=TOPIC_PATTERN,
        title="topic",
        description="1 to 249 letters, digits, `.`, `_` and `-`; not `.` or `..`.",
        examples=["orders"],
    ),
]
JobId = Annotated[
    str,
    Meta(
        min_length=1,
        title="job",
        description="Id of a job.",
        extra_json_schema={"pattern": "^[0-9a-f]{12}$"},
    ),
]
RatePattern = Annotated[
    str,
    Meta(
        pattern=RATE_PATTERN,
        title="pattern",
        description=(
            "The name of a topic, or a shell-style pattern as in `targets.allow`; at most 249 "
            "characters."
        ),
        examples=["orders.*"],
    ),
]
NodeName = Annotated[
    str, Meta(min_length=1, title="node", description="Name of a node (`node.id`).")
]
ViewPath = Annotated[
    str,
    Meta(
        min_length=1,
        title="view",
        description="A view of the console, and an id to show, such as `messages/order-17`.",
    ),
]
FileName = Annotated[
    str, Meta(min_length=1, title="file", description="A file of the console, such as `app.js`.")
]
Instant = Annotated[
    str,
    Meta(
        title="instant",
        description="RFC 3339 in UTC with milliseconds; beyond the year 9999, epoch milliseconds.",
        extra_json_schema={"pattern": INSTANT_PATTERN},
    ),
]


class Binary(Struct, forbid_unknown_fields=True, gc=False):
    """Bytes that are not UTF-8 text."""

    base64: Base64


HeaderName = Annotated[
    str,
    Meta(
        min_length=1, max_length=HEADER_NAME_MAX, extra_json_schema={"pattern": HEADER_NAME_PATTERN}
    ),
]
HeaderValue = str | Binary | None
HeaderValues = dict[HeaderName, str | Binary | list[str | Binary | None] | None]
"""Header values by name, in order; a repeated name has a list of values."""


class Target(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where a message is delivered. Give `key`, `key_base64` or neither."""

    topic: Annotated[
        TopicName, Meta(description="The topic. Topics of Chronos and of Kafka itself are refused.")
    ]
    key: Annotated[
        str | None, Meta(description="The Kafka key of the delivered message, as text.")
    ] = None
    key_base64: (
        Annotated[Base64, Meta(description="The Kafka key, if it is not text.")] | UnsetType
    ) = UNSET
    headers: Annotated[
        HeaderValues | UnsetType,
        Meta(
            description=(
                "Headers that are passed through. Names that start with `chronos-`, in any case "
                "and with `_` for `-`, are refused, and those that are one edit away from a "
                "header of Chronos."
            )
        ),
    ] = UNSET


class Message(Struct, forbid_unknown_fields=True, kw_only=True):
    """A message to deliver later. Give `deliver_at` or `delay`, and `value` or `value_base64`."""

    target: Target
    value: Annotated[
        str | UnsetType | None,
        Meta(
            description=(
                "The payload as text; null: a null payload, which is a tombstone in a compacted "
                "topic. The record with its key, headers and payload may take "
                "`topics.message_bytes_max` bytes."
            )
        ),
    ] = UNSET
    value_base64: (
        Annotated[Base64, Meta(description="The payload, if it is not text.")] | UnsetType
    ) = UNSET
    deliver_at: Annotated[
        Time | UnsetType,
        Meta(
            description=(
                "When the message is due, at most `limits.max_delay` ahead, and at most "
                "`limits.max_past` ago."
            )
        ),
    ] = UNSET
    delay: Annotated[
        Delay | UnsetType,
        Meta(
            description=(
                "How long after the log accepted the message it is due, at most `limits.max_delay`."
            ),
            examples=["90s"],
        ),
    ] = UNSET
    id: (
        Annotated[
            Id,
            Meta(
                description=(
                    "A name by which the message can be found, cancelled or replaced: 1 to 1,024 "
                    "bytes, and not of the form of a generated id."
                )
            ),
        ]
        | UnsetType
    ) = UNSET
    on_conflict: Annotated[
        Literal["reject", "replace", "ignore", "upsert"] | UnsetType,
        Meta(
            description=(
                "What happens to this message when its id is pending, or was delivered within the "
                "deduplication window: it is rejected (`reject`, the default), replaces the other "
                "one, or is dropped (`ignore`). `upsert` is for a message that is scheduled again "
                "at every start of an application: a pending one keeps its time. Needs `id`."
            )
        ),
    ] = UNSET
    expire_at: Annotated[
        Time | UnsetType,
        Meta(
            description=(
                "The message is not delivered after this time, but dead-lettered as expired. Not "
                "before its due time."
            )
        ),
    ] = UNSET
    attempts: Annotated[
        Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)] | UnsetType,
        Meta(
            description=(
                "Delivery attempts while the target refuses the message, including the first, at "
                "most `delivery.attempts_max`, the default."
            )
        ),
    ] = UNSET
    repeat: Annotated[
        Annotated[str, Meta(max_length=CRON_CHARACTERS_MAX)] | UnsetType,
        Meta(
            description=(
                "Makes the message a series: `every 30s`, `backoff 1s 2 1h` (base, factor, cap), "
                "or `cron 0 9 * * 1-5` with 5 or 6 fields, which needs neither `deliver_at` nor "
                "`delay`."
            ),
            examples=["every 30s"],
        ),
    ] = UNSET
    repeat_times: Annotated[
        Annotated[int, Meta(ge=1, le=TIMES_MAX)] | UnsetType,
        Meta(description="The number of occurrences. Needs `repeat`."),
    ] = UNSET
    repeat_until: Annotated[
        Time | UnsetType, Meta(description="No occurrence is due after this time. Needs `repeat`.")
    ] = UNSET
    time_zone: Annotated[
        str | UnsetType,
        Meta(
            description=(
                "The time zone of a cron expression, a name of the IANA database; UTC if absent. "
                "Needs `repeat`."
            ),
            examples=["Europe/Lisbon"],
        ),
    ] = UNSET
    late_policy: Annotated[
        Literal["fire-once", "fire-all", "skip"] | UnsetType,
        Meta(
            description=(
                "What happens to occurrences that were missed: the latest is delivered "
                "(`fire-once`, the default), all are (`fire-all`), or none (`skip`). Needs "
                "`repeat`."
            )
        ),
    ] = UNSET
    spread: Annotated[
        Delay | UnsetType,
        Meta(
            description=(
                "The message is delivered up to this much later than its due time, to smooth a "
                "burst."
            )
        ),
    ] = UNSET


Batch = Annotated[list[Message], Meta(min_length=1, max_length=BATCH_MAX, title="batch")]


class Reschedule(Struct, forbid_unknown_fields=True, kw_only=True):
    """A new time for a message: `deliver_at` or `delay`."""

    deliver_at: Annotated[
        Time | UnsetType,
        Meta(
            description=(
                "When the message is due, at most `limits.max_delay` ahead, and at most "
                "`limits.max_past` ago."
            )
        ),
    ] = UNSET
    delay: Annotated[
        Delay | UnsetType,
        Meta(
            description=(
                "How long after the log accepted this request the message is due, at most "
                "`limits.max_delay`."
            )
        ),
    ] = UNSET


class Pause(Struct, forbid_unknown_fields=True, kw_only=True):
    """Until when a series is paused."""

    until: Annotated[
        Time | UnsetType,
        Meta(
            description=(
                "The series goes on with its first time from then on. Without it, the series goes "
                "on once it is resumed, and at the latest `limits.max_delay` from now."
            )
        ),
    ] = UNSET


HeaderCondition = Annotated[
    str,
    Meta(
        pattern=HEADER_CONDITION_PATTERN,
        title="NAME=VALUE",
        description="The name of a header, `=`, and its value as text.",
    ),
]
IdPrefix = Annotated[
    str,
    Meta(
        max_length=1_500,
        title="id prefix",
        description="UTF-8 text, or `base64:` and the bytes in base64.",
    ),
]
Contains = Annotated[str, Meta(min_length=1, max_length=1_500, title="text")]
CONTAINS = (
    "Its id, its Kafka key, or the name or the value of one of its headers contains this text, in "
    "the same case. Needs the role `payload`."
)
CONDITIONS_MAX = 16
"""Headers in one filter."""

REPEATABLE = frozenset({"header"})
"""Parameters that may be given several times."""


KeyCondition = Annotated[
    str, Meta(title="key", description="UTF-8 text, or `base64:` and the bytes in base64.")
]


class JobFilter(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Which pending messages: all conditions must be true. Without conditions: all messages."""

    target: Annotated[
        RatePattern | UnsetType,
        Meta(description="The target topic, or a pattern as in `targets.allow`."),
    ] = UNSET
    due_from: Annotated[Time | UnsetType, Meta(description="Due at or after this time.")] = UNSET
    due_to: Annotated[Time | UnsetType, Meta(description="Due before this time.")] = UNSET
    id_prefix: Annotated[
        IdPrefix | UnsetType,
        Meta(description="First characters of the id; generated ids are included."),
    ] = UNSET
    key: Annotated[
        KeyCondition | UnsetType, Meta(description="The Kafka key of the delivered message.")
    ] = UNSET
    headers: Annotated[
        Annotated[dict[str, str], Meta(max_length=CONDITIONS_MAX)] | UnsetType,
        Meta(description="Headers that are there with exactly these values, among any others."),
    ] = UNSET
    contains: Annotated[Contains | UnsetType, Meta(description=CONTAINS)] = UNSET
    series: Annotated[bool, Meta(description="Only series.")] = False


JobAction = Literal["count", "cancel", "reschedule", "fire", "pause", "resume"]


class JobRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """An action on all pending messages of which a filter is true."""

    action: Annotated[
        JobAction,
        Meta(
            description=(
                "`count` changes nothing: it counts the messages by target. `reschedule` needs "
                "`deliver_at` or `delay`. `pause` and `resume` concern series only."
            )
        ),
    ]
    filter: Annotated[
        JobFilter | UnsetType,
        Meta(description="Which messages. Only `count` takes a filter without conditions."),
    ] = UNSET
    deliver_at: Annotated[
        Time | UnsetType,
        Meta(
            description=(
                "The new due time, at most `limits.max_delay` ahead and `limits.max_past` ago; of "
                "a `reschedule` only."
            )
        ),
    ] = UNSET
    delay: Annotated[
        Delay | UnsetType,
        Meta(
            description=(
                "How long after its action is written a message is due; of a `reschedule` only."
            )
        ),
    ] = UNSET
    until: Annotated[
        Time | UnsetType,
        Meta(description="When paused series go on, as in the request for one; of a `pause` only."),
    ] = UNSET


ScheduleOutcome = Literal[
    "accepted",
    "scheduled",
    "conflict",
    "ignored",
    "rejected",
    "created",
    "unchanged",
    "changed",
]
"""What is known of a record that schedules a message."""

_OUTCOME = Meta(
    description=(
        "`accepted`: it is in the log, and the shard has not applied it yet. After a wait: "
        "`scheduled`; `conflict`, if the id is taken; `ignored`, if it is taken and `on_conflict` "
        "is `ignore`; `rejected` for another reason, in `detail`. Of an `upsert`: `created`, if "
        "no message with the id was pending; `unchanged`, if the same one is; `changed`, if it "
        "took the place of the pending one."
    )
)


class Accepted(Struct, kw_only=True, gc=False):
    """A message that the log has acknowledged."""

    id: Annotated[str, Meta(description="The message's id: yours, or the generated one.")]
    shard: ShardNumber
    offset: Annotated[
        int, Meta(ge=0, description="Offset of the message's record in the delay topic.")
    ]
    due_at: Annotated[Instant, Meta(description="When the message is due, if it is scheduled.")]
    result: Annotated[ScheduleOutcome, _OUTCOME] = "accepted"
    detail: Annotated[str | UnsetType, Meta(description="Why it is not scheduled.")] = UNSET
    warnings: Annotated[
        list[str] | UnsetType,
        Meta(
            description=(
                "What may not have been meant: it is due in the past. And why its target would "
                "not take it now: it does not exist, is compacted and the message has no key, or "
                "would refuse the size. Absent: nothing is known."
            )
        ),
    ] = UNSET


class Outcome(Struct, kw_only=True):
    """What became of a record that schedules a message."""

    result: Annotated[ScheduleOutcome, _OUTCOME]
    id: str
    shard: ShardNumber
    offset: Annotated[int, Meta(ge=0, description="Offset of the record in the delay topic.")]
    detail: Annotated[str | UnsetType, Meta(description="Why it is not scheduled.")] = UNSET
    due_at: Annotated[
        Instant | UnsetType,
        Meta(description="Of an `upsert`: when the message that has the id is due."),
    ] = UNSET


class ActionResult(Struct, kw_only=True):
    """The result of an action. `accepted`: it is in the log, but was not applied within 5 s."""

    result: Literal[
        "cancelled",
        "rescheduled",
        "fired",
        "paused",
        "resumed",
        "too_late",
        "unknown",
        "refused",
        "accepted",
    ]
    id: str
    shard: ShardNumber
    offset: Annotated[
        Count | UnsetType,
        Meta(
            description=(
                "Offset of the action's record in the delay topic; absent if there is none, "
                "because a series that is to go on is not paused."
            )
        ),
    ] = UNSET
    detail: Annotated[str | UnsetType, Meta(description="Why the action was refused.")] = UNSET
    warnings: Annotated[
        list[str] | UnsetType,
        Meta(description="What may not have been meant: the new time is in the past."),
    ] = UNSET
    due_at: Annotated[
        Instant | UnsetType,
        Meta(description="When a series that was paused or resumed goes on."),
    ] = UNSET


class Destination(Struct, kw_only=True, omit_defaults=True):
    """Where a message is, or was, delivered."""

    topic: str
    key: str | UnsetType = UNSET
    key_base64: str | UnsetType = UNSET
    headers: HeaderValues | UnsetType = UNSET
    partition: Annotated[
        Count | UnsetType,
        Meta(
            description=(
                "The partition that the key names, by the topic's current number of partitions; "
                "that of the lane, for a parked message. Absent without a key, and on a node that "
                "does not know the topic."
            )
        ),
    ] = UNSET


class Repeats(Struct, kw_only=True):
    """The rhythm of a series."""

    repeat: Annotated[str, Meta(description="Such as `every 30s`, or `cron 0 9 * * 1-5`.")]
    times: Annotated[
        int | None, Meta(description="The number of occurrences; null: without limit.")
    ] = None
    until: Annotated[Instant | None, Meta(description="No occurrence is due after this time.")] = (
        None
    )
    time_zone: Annotated[
        str | None, Meta(description="The time zone of a cron expression; null: UTC.")
    ] = None
    late_policy: Annotated[
        Literal["fire-once", "fire-all", "skip"],
        Meta(description="What happens to occurrences that were missed."),
    ] = "fire-once"


class Rejection(Struct, kw_only=True):
    """A record that was rejected."""

    at: Annotated[Instant, Meta(description="When it was rejected.")]
    reason: Annotated[str, Meta(description="Why, as in the header `chronos-reason`.")]
    detail: Annotated[str, Meta(description="The reason in words.")]


class MessageInfo(Struct, kw_only=True):
    """State, times and target of a message."""

    id: str
    state: Annotated[
        Literal["pending", "delivered", "cancelled", "expired", "dead", "settled"],
        Meta(
            description=(
                "`settled`, in a list only: it ended, and a later message has its id, so that it "
                "is not known how."
            )
        ),
    ]
    shard: ShardNumber
    offset: Annotated[
        int, Meta(ge=0, description="Offset of the message's record in the delay topic.")
    ]
    due_at: Annotated[Instant, Meta(description="The requested due time.")]
    planned_at: Annotated[
        Instant,
        Meta(
            description=(
                "The time of the next delivery: later than `due_at` for a late arrival or a retry."
            )
        ),
    ]
    settled_at: Annotated[
        Instant | None,
        Meta(
            description=(
                "When the message was settled; null: it is pending, or the time is not kept."
            )
        ),
    ]
    accepted_at: Annotated[
        Instant | None, Meta(description="When the log accepted the message.")
    ] = None
    expire_at: Annotated[
        Instant | None, Meta(description="The message is not delivered after this time.")
    ] = None
    target: Annotated[
        Destination | None,
        Meta(
            description=(
                "Null once the message itself is deleted: it was cancelled, or its retention is "
                "over."
            )
        ),
    ] = None
    occurrence: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "Number of the occurrence of a series; 0: its first time is not decided yet."
            ),
        ),
    ] = 1
    attempt: Annotated[int, Meta(ge=1, description="Number of the delivery attempt.")] = 1
    value_bytes: Annotated[
        Count | None, Meta(description="Size of the payload; null for a null payload.")
    ] = None
    parked: Annotated[
        bool,
        Meta(
            description=(
                "True if the message is due and waits in a lane, for the reason in `reason`."
            )
        ),
    ] = False
    overdue_ms: Annotated[
        Count | None,
        Meta(
            description=(
                "By how much a pending message is overdue; null: by less than 1 s, or it is not "
                "pending. Only in the answer about one message."
            )
        ),
    ] = None
    waits_for: Annotated[
        str | None,
        Meta(
            description=(
                "What an overdue message waits for, in words: its shard, its target, the brokers."
            )
        ),
    ] = None
    reason: Annotated[
        str | None,
        Meta(
            description=(
                "Why the message was not delivered when it was last tried, as in the header "
                "`chronos-reason`; null: it was not tried yet, or was delivered or cancelled."
            )
        ),
    ] = None
    detail: Annotated[str | None, Meta(description="The reason in words.")] = None
    attempts: Annotated[
        int, Meta(ge=0, description="Delivery attempts that failed, of this occurrence.")
    ] = 0
    attempts_max: Annotated[
        Count | None,
        Meta(description="The message's own number of attempts; null: `delivery.attempts_max`."),
    ] = None
    last_try_at: Annotated[Instant | None, Meta(description="When the reason was found.")] = None
    next_try_at: Annotated[
        Instant | None,
        Meta(
            description=(
                "When a message that was not delivered is tried again; null for a parked one, "
                "which leaves its lane as soon as that is open."
            )
        ),
    ] = None
    value: Annotated[
        str | UnsetType | None,
        Meta(description="The payload, if it was asked for and is text or null."),
    ] = UNSET
    value_base64: Annotated[
        Base64 | UnsetType, Meta(description="The payload, if it was asked for and is not text.")
    ] = UNSET
    repetition: Annotated[
        Repeats | None, Meta(description="The rhythm of a series; null: it is delivered once.")
    ] = None
    paused: Annotated[
        bool,
        Meta(description="A series leaves out occurrences, and goes on at `due_at`."),
    ] = False
    occurrences_at: Annotated[
        list[Instant] | UnsetType,
        Meta(
            description=(
                "When the next occurrences of a pending series are due, if `occurrences` asked for "
                "them: the pending one first. Fewer than asked for: the series ends. Absent: the "
                "node does not know its time zone."
            )
        ),
    ] = UNSET
    spread: Annotated[
        str | None,
        Meta(description="The window in which it is delivered, from `due_at` on; null: none."),
    ] = None
    rejection: Annotated[
        Rejection | UnsetType,
        Meta(
            description=(
                "The newest record with this id that was rejected after the message was accepted, "
                "if `rejections` asked for it. Absent: none is known."
            )
        ),
    ] = UNSET


class Page(Struct, kw_only=True):
    """Messages in the order of `planned_at`."""

    messages: list[MessageInfo]
    after: Annotated[
        str | None,
        Meta(
            description=(
                "Page key: the parameter `after` of the next page; null: this is the last page. "
                "Opaque."
            )
        ),
    ]
    through: Annotated[
        Instant | UnsetType,
        Meta(
            description=(
                "The time of the last message that was read for the page, whether it is on it or "
                "not. Absent: this is the last page."
            )
        ),
    ] = UNSET
    kept_from: Annotated[
        Instant | UnsetType,
        Meta(
            description=(
                "Of settled messages: those that ended before this time are no longer in the "
                "store. Absent: all are."
            )
        ),
    ] = UNSET
    behind: Annotated[
        list[ShardNumber] | UnsetType,
        Meta(
            description=(
                "With `fresh`: shards that had not applied their log in time, so that messages "
                "may be missing. Absent: none."
            )
        ),
    ] = UNSET


class TargetCount(Struct, kw_only=True, gc=False):
    """Messages for one target topic."""

    topic: str
    messages: Count


class JobInfo(Struct, kw_only=True):
    """A bulk operation. Its node keeps it in memory: it ends with the node, and what it wrote
    stays."""

    id: str
    node: Annotated[str, Meta(description="The node that runs it.")]
    action: JobAction
    filter: JobFilter
    state: Annotated[
        Literal["running", "done", "stopped", "failed"],
        Meta(
            description=(
                "`done`: every message was looked at. `stopped`, `failed`: the counts say how far "
                "it got."
            )
        ),
    ]
    started_at: Instant
    ended_at: Instant | None
    elapsed_ms: Count
    expected: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "Messages to be read, about: those pending in the minutes of the due window at "
                "the start."
            ),
        ),
    ]
    scanned: Annotated[int, Meta(ge=0, description="Messages read.")]
    matched: Annotated[int, Meta(ge=0, description="Messages of which the filter is true.")]
    written: Annotated[int, Meta(ge=0, description="Actions that the log has acknowledged.")]
    done: Annotated[int, Meta(ge=0, description="Actions that had their effect.")]
    too_late: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "Messages that were delivered, changed or settled otherwise before their action."
            ),
        ),
    ]
    failed: Annotated[
        int, Meta(ge=0, description="Actions that were refused, or that the log did not take.")
    ]
    reasons: Annotated[dict[str, int], Meta(description="Refused actions by reason.")]
    rate: Annotated[
        float,
        Meta(ge=0, description="Messages per second: actions done; of a `count`, messages read."),
    ]
    targets: Annotated[
        list[TargetCount] | UnsetType,
        Meta(
            description=(
                "Matching messages by target topic, the most first; only in the answer about one "
                "job."
            )
        ),
    ] = UNSET
    other_targets: Annotated[
        int, Meta(ge=0, description="Matching messages for targets beyond the first 10,000.")
    ] = 0
    error: Annotated[
        str | None,
        Meta(
            description=(
                "Why it failed or was stopped. What it wrote stays: the same job again does the "
                "rest."
            )
        ),
    ] = None


class Jobs(Struct, kw_only=True):
    """The jobs of the node asked, the latest first."""

    jobs: Annotated[list[JobInfo], Meta(max_length=100)]


class Interval(Struct, kw_only=True, gc=False):
    """Messages pending in one interval."""

    start: Instant
    pending: Count


class Timeline(Struct, kw_only=True):
    """Pending messages per interval of time."""

    start: Instant
    end: Instant
    step_ms: Annotated[int, Meta(ge=60_000, description="Length of an interval in milliseconds.")]
    pending: Annotated[int, Meta(ge=0, description="Pending messages of all intervals together.")]
    intervals: Annotated[list[Interval], Meta(max_length=1500)]


class Minute(Struct, kw_only=True, gc=False):
    """One minute of a node, or of all nodes together. Lateness is that of the messages delivered in
    it, an upper bound; null: more than an hour, or no deliveries."""

    start: Instant
    delivered: Annotated[int, Meta(ge=0, description="Messages delivered.")]
    dead: Annotated[
        int, Meta(ge=0, description="Messages dead-lettered for a reason other than expiry.")
    ]
    expired: Annotated[int, Meta(ge=0, description="Messages expired.")]
    rejected: Annotated[int, Meta(ge=0, description="Records rejected.")]
    pending: Annotated[
        int,
        Meta(
            ge=0,
            description="Pending messages at its end, in the shards the node was master of.",
        ),
    ]
    late_p99_ms: Annotated[
        float | None,
        Meta(description="Lateness of 99 in 100 of them; of several nodes that of the latest."),
    ]
    late_max_ms: Annotated[float | None, Meta(description="Lateness of all of them.")]


class History(Struct, kw_only=True):
    """Minutes of one node, or of all nodes together."""

    node: Annotated[str, Meta(description="The node asked.")]
    silent: Annotated[
        list[NodeName],
        Meta(description="Nodes that were asked and do not answer: their minutes are missing."),
    ] = []
    minutes: Annotated[
        list[Minute],
        Meta(
            max_length=1440,
            description=(
                "The oldest first; the last one is not over yet. A minute in which the process "
                "did not run is absent."
            ),
        ),
    ]


class TargetCounters(Struct, kw_only=True):
    """What became of the messages of one target, or of several."""

    delivered: Annotated[Count, Meta(description="Delivered messages.")] = 0
    late: Annotated[
        Count, Meta(description="Those of them that were late by more than one second.")
    ] = 0
    dead_letters: Annotated[Count, Meta(description="Messages that became dead letters.")] = 0


class TargetInfo(TargetCounters, kw_only=True):
    """What became of the messages of one target."""

    topic: TopicName


class Targets(Struct, kw_only=True):
    """The targets that nodes have counted messages for since they started."""

    targets: Annotated[
        list[TargetInfo], Meta(max_length=10_000, description="In the order asked for.")
    ]
    total: Annotated[Count, Meta(description="The targets that were found; more than are listed.")]
    others: Annotated[
        TargetCounters | None,
        Meta(
            description=(
                "All targets together that are not counted one by one: each node counts 10,000. "
                "Null for a token that is limited to some targets."
            )
        ),
    ] = None
    silent: Annotated[
        list[NodeName], Meta(description="Nodes that do not answer: their counts are missing.")
    ] = []


class Epoch(Struct, kw_only=True):
    """The epochs of a shard's last committing master."""

    role: Annotated[int, Meta(ge=0, description="Role epoch, given out by the controller.")]
    log: Annotated[int, Meta(ge=0, description="Log epoch, counted in the progress log.")]


class Cursor(Struct, kw_only=True):
    """The position up to which a shard has settled everything."""

    due_at: Instant
    due_ms: Annotated[int, Meta(ge=0, description="The same time in epoch milliseconds.")]
    offset: Annotated[Count | None, Meta(description="Null: everything due at that time.")]


class Lateness(Struct, kw_only=True):
    """Delivered minus due since the node started; quantiles are upper bounds. Null: more than an
    hour, or no deliveries."""

    count: Annotated[int, Meta(ge=0, description="Deliveries measured.")]
    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    mean_ms: float | None


class Counters(Struct, kw_only=True):
    """Messages by outcome, since the shard began."""

    accepted: Annotated[int, Meta(ge=0, description="Messages accepted.")]
    delivered: Annotated[int, Meta(ge=0, description="Messages delivered.")]
    cancelled: Annotated[int, Meta(ge=0, description="Messages cancelled.")]
    replaced: Annotated[
        int, Meta(ge=0, description="Messages replaced by another one with the same id.")
    ]
    changed: Annotated[int, Meta(ge=0, description="Messages rescheduled or fired by an action.")]
    expired: Annotated[
        int, Meta(ge=0, description="Messages expired, sent to the dead-letter topic.")
    ]
    dead: Annotated[
        int, Meta(ge=0, description="Messages dead-lettered for a reason other than expiry.")
    ]
    carried: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "Times a message stayed pending with a new due time: a retry or a deferral."
            ),
        ),
    ]
    rejected: Annotated[
        int, Meta(ge=0, description="Records rejected, sent to the rejected topic.")
    ]
    ignored: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "Records dropped without effect: a message with `ignore` whose id is taken, or a "
                "cancel of a cancelled message."
            ),
        ),
    ]
    forwarded: Annotated[
        int, Meta(ge=0, description="Records written on to the partition that their id belongs to.")
    ]
    probes: Annotated[
        int,
        Meta(ge=0, description="Probes: records of Chronos's own that test a shard's delivery."),
    ]
    parked: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "Times a message was parked, because its partition had no leader or the rate of "
                "its target was used up."
            ),
        ),
    ]
    held: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "Records that had to wait to be forwarded or rejected; they count as such when "
                "they are written on."
            ),
        ),
    ] = 0


class ReplicaInfo(Struct, kw_only=True):
    """One replica of a shard, as its node last reported it."""

    node: str
    role: Annotated[
        str, Meta(description="`master`, `follower`, or a state in between such as `recovering`.")
    ]
    applied: Annotated[
        Count | None,
        Meta(description="Records of the progress topic applied; null: not known yet."),
    ]
    lag: Annotated[
        Count | None,
        Meta(description="Progress records behind the most advanced replica; null: not known yet."),
    ]


class FailoverShard(Struct, kw_only=True):
    """What the nodes find of one shard's master."""

    shard: ShardNumber
    master: Annotated[
        str | None, Meta(description="The assigned master; null: none, or standalone.")
    ]
    healthy: Annotated[
        list[str],
        Meta(description="Nodes that find it healthy; of those that share one, the machine."),
    ]
    unhealthy: Annotated[
        list[str],
        Meta(description="Nodes that find it unhealthy; of those that share one, the machine."),
    ]
    needed: Annotated[
        Count | None,
        Meta(
            description="So many of them make it unhealthy; null: fewer than two nodes observe it."
        ),
    ]
    armed_until: Annotated[
        Instant | None,
        Meta(description="End of an operator's permission for one failover; null: there is none."),
    ]


class FailoverStatus(Struct, kw_only=True):
    """The health of all masters."""

    on_unhealthy: Annotated[
        Literal["off", "armed", "auto"],
        Meta(description="The mode of `failover.on_unhealthy` in force on the node asked."),
    ]
    shards: list[FailoverShard]


class DeadCase(Struct, kw_only=True):
    """Dead letters with one reason, of one target."""

    reason: Annotated[str, Meta(description="As in the header `chronos-reason`.")]
    target: str
    messages: Annotated[int, Meta(ge=1, description="Their number.")]


class DeadRecently(Struct, kw_only=True):
    """Messages that this node dead-lettered in the last 10 minutes, without expired ones."""

    messages: Annotated[int, Meta(ge=1, description="Their number.")]
    last_at: Instant
    cases: Annotated[
        list[DeadCase], Meta(max_length=DEAD_CASES_MAX, description="The most frequent cases.")
    ]
    text: Annotated[str, Meta(description="The same for people.")]


class HeldBack(Struct, kw_only=True):
    """Records of a delay partition that cannot be read because a producer's transaction is open."""

    records: Annotated[int, Meta(ge=1, description="Records, those of the transaction included.")]
    since: Annotated[Instant, Meta(description="When the transaction was first found open.")]


class Shard(Struct, kw_only=True):
    """One shard, as one of its replicas shows it."""

    shard: ShardNumber
    node: Annotated[
        str | None, Meta(description="Node of the replica; null: no node with a replica answers.")
    ]
    role: Annotated[
        str,
        Meta(
            description="`master`, `follower`, `none`, or a state in between such as `recovering`."
        ),
    ]
    master: Annotated[
        str | None,
        Meta(
            description="The assigned master; standalone: the node that committed last; null: none."
        ),
    ]
    master_since: Annotated[
        Instant | None, Meta(description="When the master was assigned; null: standalone.")
    ]
    replicas: Annotated[
        list[ReplicaInfo], Meta(description="The replicas of all nodes; empty: standalone.")
    ]
    epoch: Epoch
    paused: Annotated[str | None, Meta(description="Why the shard is paused; null: it is not.")]
    cursor: Cursor
    pull_offset: Annotated[int, Meta(ge=0, description="Records of the delay topic applied.")]
    end_offset: Annotated[
        Count | None,
        Meta(description="High watermark of the delay partition; null: the log does not answer."),
    ]
    lag: Annotated[
        Count | None,
        Meta(
            description=(
                "Records of the delay topic not applied yet, those that an open transaction holds "
                "back included; null: the log does not answer."
            )
        ),
    ]
    applied: Annotated[int, Meta(ge=0, description="Records of the progress topic applied.")]
    progress_at: Annotated[
        Instant | None,
        Meta(description="Broker timestamp of the last progress record; null: there is none."),
    ]
    pending: Annotated[int, Meta(ge=0, description="Messages accepted and not settled yet.")]
    parked: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "Pending messages that are due and wait until their partition has a leader."
            ),
        ),
    ]
    held: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "Records that wait to be forwarded or rejected, because the partition of their "
                "id, or the rejected topic, takes none."
            ),
        ),
    ] = 0
    next_due_at: Annotated[
        Instant | None,
        Meta(description="When the next message is due; null: none is pending that is not parked."),
    ]
    oldest_overdue_ms: Annotated[
        int,
        Meta(ge=0, description="How long the first pending message that is not parked is overdue."),
    ]
    lateness: Lateness
    step_p99_ms: Annotated[
        float | None,
        Meta(
            description="99th percentile of the duration of steps that committed; null: none yet."
        ),
    ]
    commits: Annotated[
        int, Meta(ge=0, description="Transactions committed since the node started.")
    ]
    aborts: Annotated[int, Meta(ge=0, description="Transactions aborted since the node started.")]
    totals: Counters
    store_bytes: Annotated[int, Meta(ge=0, description="Size of the store on disk.")]
    held_back: Annotated[
        HeldBack | None,
        Meta(
            description=(
                "What an open transaction has held back for more than 1 s; null: nothing, or not "
                "the master."
            )
        ),
    ] = None
    waits_for: Annotated[
        str | None,
        Meta(
            description=(
                "The partitions, with their leaders, that have not acknowledged a record of the "
                "current step for more than 1 s; null: none."
            )
        ),
    ] = None
    dead_recently: Annotated[
        DeadRecently | None,
        Meta(
            description="Messages that this node dead-lettered in the last 10 minutes; null: none."
        ),
    ] = None
    unitless: Annotated[
        dict[str, int] | None,
        Meta(
            description=(
                "Records that this node read since it started as master whose `chronos-delay` or "
                "`chronos-spread` is a number from 1 to 999 without a unit, by target, the empty "
                "one for actions: milliseconds, and probably meant as seconds; null: none."
            )
        ),
    ] = None
    unhealthy: Annotated[
        list[str] | None,
        Meta(
            description=(
                "Nodes whose probes find the master unhealthy, or their machine where they share "
                "one; null: none."
            )
        ),
    ] = None
    in_sync: Annotated[
        list[str] | None,
        Meta(
            description=(
                "Nodes whose followers are in sync: at most 10 s behind, and "
                "able to take over; null: standalone."
            )
        ),
    ] = None
    in_sync_needed: Annotated[
        Count | None,
        Meta(
            description=(
                "So many must be in sync (`replication.min_in_sync`), each on another machine; "
                "null: none, as with `replication.mode: async`."
            )
        ),
    ] = None
    in_sync_missing: Annotated[
        Count | None, Meta(description="So many are missing to that; null: none is needed.")
    ] = None


class Shards(Struct, kw_only=True):
    """All shards."""

    shards: list[Shard]


class NodeShard(Struct, kw_only=True):
    """A node's replica of one shard."""

    shard: ShardNumber
    role: str
    applied: Annotated[
        Count | None,
        Meta(description="Records of the progress topic applied; null: not known yet."),
    ]
    pull_offset: Annotated[int, Meta(ge=0, description="Records of the delay topic applied.")]
    role_epoch: Annotated[
        int, Meta(ge=0, description="The greatest role epoch in the progress log.")
    ]


class BrokerInfo(Struct, kw_only=True):
    """A broker that leads partitions of targets, as this node measured it."""

    broker: Annotated[int, Meta(description="Id of the broker.")]
    latency_ms: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "Time from sending a record to its acknowledgement, last measured; 30000 if that "
                "failed."
            ),
        ),
    ]
    unavailable_until: Annotated[
        Instant | None,
        Meta(description="Until when messages without a key avoid it; null: they do not."),
    ]


class NodeInfo(Struct, kw_only=True):
    """One node. Nodes other than the one asked are shown as they last reported themselves."""

    node: str
    host: Annotated[
        str | None,
        Meta(description="The machine that it shares with other nodes (`node.host`); null: none."),
    ]
    cluster: str
    instance: Annotated[str, Meta(description="Id of the node's data directory.")]
    address: Annotated[str, Meta(description="URL at which other nodes reach the node.")]
    version: str
    zone_data: Annotated[
        str | None,
        Meta(
            description="The zone data by which the node computes the times of cron expressions, "
            "such as `IANA 2026f`; null: the node does not report them."
        ),
    ]
    coordinator: Annotated[str, Meta(description="`standalone`, `kafka`, `zookeeper` or `raft`.")]
    log: Annotated[str, Meta(description="`embedded` or `kafka`.")]
    delay_topic: Annotated[str, Meta(description="The topic producers write delayed messages to.")]
    ready: bool
    reasons: Annotated[list[str], Meta(description="Why the node is not ready.")]
    leaving: Annotated[bool, Meta(description="The node is stopping and hands over its shards.")]
    retiring: Annotated[
        bool,
        Meta(
            description="The node gives its replicas away and then stops for good: its machine has "
            "fewer processes now."
        ),
    ]
    drained: Annotated[bool, Meta(description="The node is drained: it gets no shard to lead.")]
    started_at: Instant
    shards: list[NodeShard]
    now: Annotated[Instant | None, Meta(description="The node's clock; null: another node.")] = None
    disk_free_bytes: Annotated[
        Count | None,
        Meta(description="Free space on the disk of the data directory; null: another node."),
    ] = None
    switched_off: Annotated[
        list[str] | None,
        Meta(
            description=(
                "What this node does not do because `workers.push` or `workers.pull` is off; "
                "null: another node."
            )
        ),
    ] = None
    older_zone_data: Annotated[
        str | None,
        Meta(
            description="Set if this node leads a shard whose times were planned by newer zone "
            "data than its own: what to do about it; null: no such shard, or another node."
        ),
    ] = None
    brokers: Annotated[
        list[BrokerInfo] | None,
        Meta(
            description=(
                "The brokers that this node has sent messages to; empty with "
                "`delivery_faults.enabled: off`; null: another node."
            )
        ),
    ] = None


class AwayNode(Struct, kw_only=True):
    """A node that holds replicas and is not a member of the cluster at the moment."""

    node: str
    since: Instant
    shards: Annotated[list[ShardNumber], Meta(description="The shards it holds replicas of.")]


class RoleChange(Struct, kw_only=True):
    """One change of a shard's master."""

    at: Instant
    shard: Annotated[
        int, Meta(ge=-1, le=1023, description="The shard; -1: a change of the whole node.")
    ]
    master: Annotated[str | None, Meta(description="The new master; null: none.")]
    previous: Annotated[str | None, Meta(description="The master before; null: none.")]
    epoch: Annotated[int, Meta(ge=0, description="The role epoch.")]
    why: str


class Nodes(Struct, kw_only=True):
    """The nodes of the cluster, the node asked first."""

    nodes: list[NodeInfo]
    away: Annotated[list[AwayNode], Meta(description="Nodes that are expected to come back.")]
    controller: Annotated[
        str | None,
        Meta(description="The node that assigns roles; null: standalone, or none is elected."),
    ]
    controller_epoch: Annotated[
        Count | None, Meta(description="Grows with every new controller; null: standalone.")
    ]
    sure: Annotated[bool, Meta(description="True if the coordinator answers at the moment.")]
    history: Annotated[
        list[RoleChange],
        Meta(max_length=50, description="The last changes of roles, newest first."),
    ]


class CheckpointInfo(Struct, kw_only=True):
    """One checkpoint of a shard's store."""

    name: str
    node: Annotated[str, Meta(description="The node that made it.")]
    made_at: Instant
    applied: Annotated[
        int, Meta(ge=0, description="Offset from which it needs the progress topic.")
    ]
    pull_offset: Annotated[
        int, Meta(ge=0, description="Offset from which it needs the delay topic.")
    ]
    pending: Annotated[int, Meta(ge=0, description="Messages pending in it.")]
    digest: Annotated[str, Meta(description="Digest of its logical content.")]
    bytes: Annotated[int, Meta(ge=0, description="Size of its files.")]


class ShardCheckpoints(Struct, kw_only=True):
    """The checkpoints of one shard, the most advanced first."""

    shard: ShardNumber
    problem: Annotated[
        str | None, Meta(description="Why this node's last attempt failed; null: it did not.")
    ]
    checkpoints: list[CheckpointInfo]


class CheckpointsInfo(Struct, kw_only=True):
    """The checkpoints of all shards."""

    shards: list[ShardCheckpoints]


class DigestInfo(Struct, kw_only=True):
    """The digest of a replica at one progress record. Replicas with the same `applied` have the
    same digest."""

    shard: ShardNumber
    node: Annotated[str, Meta(description="Node of the replica.")]
    applied: Annotated[int, Meta(ge=0, description="Records of the progress topic applied.")]
    pull_offset: Annotated[int, Meta(ge=0, description="Records of the delay topic applied.")]
    cursor_at: Instant
    pending: Annotated[int, Meta(ge=0, description="Messages pending.")]
    digest: Annotated[
        str, Meta(description="Digest of the logical content. Opaque: compare it, do not parse it.")
    ]
    remembered_ms: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "How long the states of settled messages are part of the digest. Digests are "
                "comparable only between replicas with the same value."
            ),
        ),
    ]


class OperationResult(Struct, kw_only=True):
    """The result of an operator's request."""

    result: Annotated[
        Literal["done", "accepted"],
        Meta(description="`accepted`: the controller has the request; not done within 10 s."),
    ]
    what: Annotated[str, Meta(description="The request in words.")]


class RateInfo(Struct, kw_only=True):
    """The rate limit of the target topics that a pattern matches."""

    pattern: RatePattern
    rate: Annotated[str, Meta(description="`200/s`, `50/s burst 100` or `unlimited`.")]
    source: Annotated[
        Literal["run-time", "configuration"],
        Meta(
            description=(
                "Where it comes from. A limit set at run time comes before those of the "
                "configuration."
            )
        ),
    ]


class LaneInfo(Struct, kw_only=True):
    """Messages that are due and wait, of all shards together."""

    topic: Annotated[str, Meta(description="Their target.")]
    partition: Annotated[
        int | None,
        Meta(
            description=(
                "The partition without a leader; -1: the topic as a whole; null: the rate keeps "
                "them."
            )
        ),
    ]
    waits_for: Literal["rate", "leader"]
    messages: Count
    rate: Annotated[str | None, Meta(description="The rate of the topic; null: it has no limit.")]
    empty_at: Annotated[
        Instant | None,
        Meta(
            description=(
                "When the last of them will have left at this rate; null: that is not known, or "
                "never."
            )
        ),
    ]


class Rates(Struct, kw_only=True):
    """Rate limits, and what waits."""

    rates: Annotated[
        list[RateInfo],
        Meta(
            description=(
                "In the order in which they are looked for: the first whose pattern matches a "
                "topic is in force."
            )
        ),
    ]
    lanes: Annotated[
        list[LaneInfo], Meta(description="Those with the most messages first; at most 1,000.")
    ]


class RateChange(Struct, forbid_unknown_fields=True, kw_only=True):
    """A rate limit to set."""

    rate: Annotated[
        str,
        Meta(
            max_length=100,
            description="`200/s`, `0.5/s`, `50/s burst 100` or `unlimited`.",
            examples=["200/s"],
        ),
    ]


class PartitionInfo(Struct, kw_only=True):
    """The bounds of a partition."""

    partition: Count
    start: Annotated[int, Meta(ge=0, description="Offset of the first record kept.")]
    end: Annotated[int, Meta(ge=0, description="Offset after the last record a consumer may see.")]


class Topic(Struct, kw_only=True):
    """A topic."""

    topic: str
    partitions: list[PartitionInfo]


class Topics(Struct, kw_only=True):
    """Topics."""

    topics: list[Topic]


class LogRecord(Struct, kw_only=True, omit_defaults=True):
    """One record of a topic. UTF-8 text is in `key` and `value`, other bytes in `key_base64` and
    `value_base64`."""

    partition: Count
    offset: Count
    timestamp: Instant
    key: str | UnsetType | None = UNSET
    key_base64: str | UnsetType = UNSET
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    headers: Annotated[
        dict[str, str | Binary | list[str | Binary | None] | None] | UnsetType,
        Meta(
            description=(
                "Values by name; a repeated name has a list. Absent without the role `payload`."
            )
        ),
    ] = UNSET


class Records(Struct, kw_only=True):
    """Records of one partition, in order."""

    records: Annotated[list[LogRecord], Meta(max_length=1000)]
    next_offset: Annotated[int, Meta(ge=0, description="Offset of the next record to read.")]


class Health(Struct, kw_only=True):
    """The check passed."""

    status: Literal["ok"] = "ok"
    details: Annotated[
        list[str] | UnsetType,
        Meta(
            description=(
                "What operators should know although the check passed, such as records held back."
            )
        ),
    ] = UNSET


class Fault(Struct, kw_only=True, omit_defaults=True):
    """One error of a request."""

    detail: str
    field: Annotated[str | UnsetType, Meta(description="The field or the parameter.")] = UNSET
    index: Annotated[Count | UnsetType, Meta(description="The element of the array, from 0.")] = (
        UNSET
    )
    reason: Annotated[
        str | UnsetType, Meta(description="The reason, as in the header `chronos-reason`.")
    ] = UNSET


class Problem(Struct, kw_only=True, omit_defaults=True):
    """The description of an error (RFC 9457)."""

    type: Annotated[
        str,
        Meta(
            description="`urn:chronos:problem:` and one word; `about:blank` for plain HTTP errors."
        ),
    ]
    title: str
    status: Annotated[int, Meta(ge=400, le=599)]
    detail: str
    hint: Annotated[str | UnsetType, Meta(description="The remedy.")] = UNSET
    errors: (
        Annotated[
            list[Fault],
            Meta(max_length=FAULTS_MAX, description="The errors, by field; the first 100."),
        ]
        | UnsetType
    ) = UNSET
    errors_total: Annotated[
        Count | UnsetType,
        Meta(description="Number of errors, where `errors` does not list them all."),
    ] = UNSET


# --- Queries


class NoQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Takes no parameters."""


class AnyQuery(Struct, kw_only=True):
    """Takes any parameters, which only the console reads."""


ShardList = Annotated[
    str,
    Meta(
        pattern=SHARDS_PATTERN,
        title="shard list",
        description=(
            "Shard numbers with commas between, each below the number of shards: the answer is "
            "about these shards only, and only from the replicas of the node asked. Nodes query "
            "each other this way; a token that gives it is refused with status 403."
        ),
    ),
]


class ShardsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which shards."""

    shards: ShardList | UnsetType = UNSET


OutcomeWait = (
    Annotated[int, Meta(ge=0, le=5_000, description="Milliseconds.")]
    | Annotated[
        str,
        Meta(
            pattern=DURATION_PATTERN,
            title="duration",
            description="A number and a unit, or several of them: at most 5s.",
        ),
    ]
)


class ScheduleQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Whether to wait for the result."""

    wait: Annotated[
        OutcomeWait | UnsetType,
        Meta(
            description=(
                "How long to wait until the shards have applied the messages, at most 5s. The "
                "result of a message that was not applied by then is `accepted`."
            )
        ),
    ] = UNSET


class OutcomeQuery(ShardsQuery):
    """Which record, and how long to wait."""

    offset: Annotated[
        int, Meta(ge=0, le=2**62, description="Offset of the record in the delay topic.")
    ]
    wait: Annotated[
        OutcomeWait,
        Meta(description="How long to wait until the shard has applied the record, at most 5s."),
    ] = "5s"


class MessageQuery(ShardsQuery):
    """Which shards, and what is wanted besides."""

    payload: Annotated[
        bool,
        Meta(
            description=(
                "Return the payload too, while the message is kept: until its end, and then for "
                "`retention.delivered`. Later the payload of a dead message is in the dead-letter "
                "topic only."
            )
        ),
    ] = False
    occurrences: Annotated[
        int,
        Meta(ge=0, le=100, description="Return the times of so many next occurrences of a series."),
    ] = 0
    rejections: Annotated[
        bool,
        Meta(
            description=(
                "Also look for a later record with this id that was rejected, among the newest of "
                "the rejected topic."
            )
        ),
    ] = False


class TargetsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which targets, and in which order."""

    find: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=249,
                description="Only targets with this in their name, in capitals or not.",
            ),
        ]
        | UnsetType
    ) = UNSET
    order: Annotated[
        Literal["delivered", "late", "dead_letters", "topic"],
        Meta(description="The greatest number first; `topic`: by name."),
    ] = "delivered"
    limit: Annotated[int, Meta(ge=1, le=10_000, description="Most targets to list.")] = 1_000
    of: Annotated[
        Literal["cluster", "node"],
        Meta(description="`cluster`: the counts of all nodes together. `node`: of the node asked."),
    ] = "cluster"


class RatesQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which topic."""

    topic: (
        Annotated[
            TopicName, Meta(description="Only the limit in force for this topic, and its lanes.")
        ]
        | UnsetType
    ) = UNSET
    shards: ShardList | UnsetType = UNSET


class OverviewQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which shards, and which of their replicas."""

    shards: ShardList | UnsetType = UNSET
    copies: Annotated[
        Literal["own", "masters"],
        Meta(
            description=(
                "`own`: the replicas of the node asked, where it has one. `masters`: those of the "
                "masters."
            )
        ),
    ] = "own"


PageKey = Annotated[
    str,
    Meta(
        max_length=PAGE_KEY_MAX,
        title="page key",
        description=(
            "`after` of the page before, of a request with the same token and the same "
            "conditions: where this page begins."
        ),
    ),
]


ListedState = Literal["pending", "settled", "delivered", "cancelled", "expired", "dead"]


class PageQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which messages: all conditions must be true."""

    state: Annotated[
        ListedState,
        Meta(
            description=(
                "`settled`: those that have ended, for `retention.delivered`, among them with the "
                "state `settled` those whose id has a later message: how they ended is not kept. "
                "The due window is that of `planned_at`, for a cancelled message the time of its "
                "cancel."
            )
        ),
    ] = "pending"
    target: Annotated[
        RatePattern | UnsetType,
        Meta(
            description=(
                "Only messages for this topic, or for those that match a pattern as in "
                "`targets.allow`."
            )
        ),
    ] = UNSET
    due_from: Annotated[
        Time | UnsetType, Meta(description="Only messages due at or after this time.")
    ] = UNSET
    due_to: Annotated[Time | UnsetType, Meta(description="Only messages due before this time.")] = (
        UNSET
    )
    id_prefix: Annotated[
        IdPrefix | UnsetType,
        Meta(description="Only messages whose id begins so, generated ids included."),
    ] = UNSET
    key: Annotated[
        KeyCondition | UnsetType,
        Meta(description="Only messages with this Kafka key, that of the delivered message."),
    ] = UNSET
    header: Annotated[
        Annotated[list[HeaderCondition], Meta(max_length=CONDITIONS_MAX)] | UnsetType,
        Meta(
            description=(
                "Only messages with this header, `NAME=VALUE`. May be repeated; all must be there."
            )
        ),
    ] = UNSET
    contains: Annotated[Contains | UnsetType, Meta(description=CONTAINS)] = UNSET
    series: Annotated[
        bool, Meta(description="Only series: messages that are delivered repeatedly.")
    ] = False
    limit: Annotated[
        int, Meta(ge=1, le=1000, description="At most this many messages; a page may hold fewer.")
    ] = 100
    fresh: Annotated[
        bool,
        Meta(
            description=(
                "Wait up to 3 s until the shards have applied what is in the log now, so that "
                "messages that were acknowledged before are found. Of the first page only."
            )
        ),
    ] = False
    after: PageKey | UnsetType = UNSET
    shards: ShardList | UnsetType = UNSET


Step = (
    Annotated[int, Meta(ge=60_000, le=MS_MAX, multiple_of=60_000, description="Milliseconds.")]
    | Annotated[
        str,
        Meta(
            pattern=DURATION_PATTERN,
            title="duration",
            description="A number and a unit, or several of them: a whole number of minutes.",
        ),
    ]
)


class HistoryQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """How far back."""

    minutes: Annotated[
        int,
        Meta(
            ge=1,
            le=1440,
            description="The last so many minutes, the one that is not over yet included.",
        ),
    ] = 60
    of: Annotated[
        Literal["node", "cluster"],
        Meta(description="`node`: of the node asked. `cluster`: of all nodes together."),
    ] = "node"


class TimelineQuery(
    Struct, forbid_unknown_fields=True, kw_only=True, rename={"start": "from", "end": "to"}
):
    """Which time, in which intervals."""

    start: Annotated[
        Time | UnsetType, Meta(description="Beginning, rounded down to the minute; now, if absent.")
    ] = UNSET
    end: Annotated[
        Time | UnsetType,
        Meta(
            description=(
                "End, after the beginning by at most 1,100 days; one hour after the beginning, if "
                "absent."
            )
        ),
    ] = UNSET
    step: Annotated[
        Step | UnsetType,
        Meta(
            description=(
                "Length of an interval in whole minutes, at most 1,500 intervals; if absent, the "
                "shortest that gives at most 60 intervals."
            )
        ),
    ] = UNSET
    shards: ShardList | UnsetType = UNSET


Wait = (
    Annotated[int, Meta(ge=0, le=60_000, description="Milliseconds.")]
    | Annotated[
        str,
        Meta(
            pattern=DURATION_PATTERN,
            title="duration",
            description="A number and a unit, or several of them: at most 60s.",
        ),
    ]
)


class TopicsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which topic."""

    topic: Annotated[
        TopicName | UnsetType,
        Meta(
            description=(
                "Only this topic. Without it all topics of the embedded log; on Kafka those of "
                "Chronos itself."
            )
        ),
    ] = UNSET


class RecordsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to read, and how long to wait."""

    partition: Annotated[int, Meta(ge=0, le=1023, description="The partition.")] = 0
    offset: Annotated[
        Annotated[int, Meta(ge=0, le=2**62)] | UnsetType,
        Meta(
            description=(
                "First record to read, at most the end of the partition; the first one kept, if "
                "absent."
            )
        ),
    ] = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000, description="At most this many records.")] = 100
    wait: Annotated[
        Wait, Meta(description="How long to wait for a record when there is none, at most 60s.")
    ] = "0s"


class TransferQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The node that becomes master."""

    to: Annotated[NodeName, Meta(description="The node to transfer the shard to.")]


# --- The sender


class TokenLimits(Struct, kw_only=True):
    """How much a token may have at a time on one node."""

    polls: Annotated[int, Meta(description="Long polls.")]
    connections: Annotated[int, Meta(description="Connections, idle ones included.")]
    jobs: Annotated[int, Meta(description="Running jobs.")]


class WhoAmI(Struct, kw_only=True):
    """The sender of a request, and what it may do."""

    tokens: Annotated[
        bool,
        Meta(description="The service has tokens. Without them every sender may do everything."),
    ]
    token: Annotated[
        str | None,
        Meta(description="Name of the sender's token, as in the audit trail; null without tokens."),
    ]
    roles: Annotated[
        list[Literal["read", "payload", "write", "operate"]],
        Meta(description="The roles of the token; all without tokens."),
    ]
    targets: Annotated[
        list[str],
        Meta(description="Patterns of the target topics that it may see and change; `*`: all."),
    ]
    ids: Annotated[
        list[str],
        Meta(
            description=(
                "Patterns of the ids that it may see and change; `*`: all. An id that Chronos "
                "made belongs to whoever has the target."
            )
        ),
    ]
    limits: Annotated[
        TokenLimits | None,
        Meta(description="Null: only those of all senders together."),
    ]
    actions: Annotated[
        list[str],
        Meta(
            description=(
                "The requests with the role `write` or `operate` that it may send, by the names "
                "that they have in the audit trail and in `/openapi.json` (`operationId`)."
            )
        ),
    ]


# --- The audit trail

AuditPhase = Literal["intent", "outcome"]


class AuditEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the audit trail."""

    time: Annotated[str, Meta(description="When it was made, by the clock of the node.")]
    request: Annotated[
        str,
        Meta(
            description=(
                "Random id of the request, in all of its entries and in the header "
                "`Chronos-Request` of its answer."
            )
        ),
    ]
    phase: Annotated[
        AuditPhase,
        Meta(
            description=(
                "`intent`: before the request was carried out, with `audit.required`. `outcome`: "
                "after it."
            )
        ),
    ]
    node: Annotated[str, Meta(description="The node that was asked.")]
    client: Annotated[str | None, Meta(description="Address of the other end of the connection.")]
    token: Annotated[
        str | None, Meta(description="Name of the token; null: the service has no tokens.")
    ]
    role: Annotated[str, Meta(description="The role that the request needs.")]
    verb: Annotated[str, Meta(description="The action: the `operationId` of its route.")]
    ids: Annotated[
        list[str],
        Meta(
            description=(
                "What the request names: ids of messages, positions of dead letters, or the other "
                "parameters of its path. At most 200; a request with more has several entries."
            )
        ),
    ]
    query: Annotated[
        str, Meta(description="The query of the request; empty without the role `payload`.")
    ] = ""
    asked: Annotated[
        str,
        Meta(
            description=(
                "The beginning of the body, unless it may have payloads; empty without the role "
                "`payload`."
            )
        ),
    ] = ""
    status: Annotated[int, Meta(ge=0, description="Status of the answer, in an outcome.")] = 0
    outcome: Annotated[str, Meta(description="The result, or the kind of the problem.")] = ""


class AuditPage(Struct, kw_only=True):
    """Entries of the audit trail, the newest first: of the requests to the node asked, as far as
    its file has them. Those of a file that was renamed are not read."""

    entries: list[AuditEntry]
    after: Annotated[
        str | None,
        Meta(
            description=(
                "Page key: the parameter `after` of the next page; null: everything was read. "
                "Opaque. A page that is not the last one may be short or empty."
            )
        ),
    ]
    read: Annotated[int, Meta(ge=0, description="Entries that were read for this page.")]


AuditName = Annotated[str, Meta(min_length=1)]


class AuditQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which entries."""

    token: Annotated[
        AuditName | UnsetType,
        Meta(description="Only requests of the token with this name."),
    ] = UNSET
    action: Annotated[
        AuditName | UnsetType,
        Meta(description="Only requests with this `verb`, such as `cancel`."),
    ] = UNSET
    id: Annotated[
        AuditName | UnsetType,
        Meta(description="Only requests that name this id, as in `ids`."),
    ] = UNSET
    phase: Annotated[AuditPhase | UnsetType, Meta(description="Only entries of this phase.")] = (
        UNSET
    )
    refused: Annotated[bool, Meta(description="Only outcomes with a status of 400 or above.")] = (
        False
    )
    since: Annotated[Time | UnsetType, Meta(description="Only those at or after this time.")] = (
        UNSET
    )
    until: Annotated[Time | UnsetType, Meta(description="Only those before this time.")] = UNSET
    limit: Annotated[
        int, Meta(ge=1, le=1000, description="At most this many; a page may hold fewer.")
    ] = 100
    after: PageKey | UnsetType = UNSET


# --- Audits of the archive

ArchiveAuditName = Annotated[
    str, Meta(min_length=1, description="Name of the file, without `.json`.")
]

ArchiveVerdict = Literal["clean", "broken", "not-proved"]

AuditCounts = Annotated[
    dict[str, int], Meta(description="Messages by outcome, as `chronos audit` names it.")
]


class AuditedLateness(Struct, kw_only=True):
    """Lateness of the delivered messages, in ms; null: there are none."""

    count: int = 0
    p50_ms: int | None = None
    p99_ms: int | None = None
    p999_ms: int | None = None
    max_ms: int | None = None


class AuditedMessages(Struct, kw_only=True, omit_defaults=True):
    """Messages of one target or one minute, or all of an audit."""

    target: str | UnsetType = UNSET
    at: Annotated[
        str | UnsetType,
        Meta(description="The beginning of the minute, in a long window of several."),
    ] = UNSET
    counts: AuditCounts
    lateness: AuditedLateness


class AuditedReason(Struct, kw_only=True):
    """Messages with one outcome and one reason."""

    outcome: str
    reason: str | None
    count: int


class AuditSample(Struct, kw_only=True):
    """One broken promise."""

    outcome: str
    shard: int
    offset: Annotated[int, Meta(description="Of its record in the delay topic.")]
    target: str | None
    due_minute: str


class ArchiveAudit(Struct, kw_only=True, rename={"start": "from", "end": "to"}):
    """The result of one audit, or why the file has none."""

    name: ArchiveAuditName
    written_at: Annotated[str, Meta(description="When the file was written.")]
    problem: Annotated[
        str | UnsetType,
        Meta(description="Why the file has no result; the fields below are then missing."),
    ] = UNSET
    verdict: Annotated[
        ArchiveVerdict | UnsetType,
        Meta(
            description=(
                "`clean`: nothing is missing, duplicated or early, and the archive proves it. "
                "`broken`: a promise was broken. `not-proved`: no promise was broken as far as "
                "the archive proves, but it does not prove every outcome."
            )
        ),
    ] = UNSET
    cluster: str | UnsetType = UNSET
    start: Annotated[str | UnsetType, Meta(description="Beginning of the window.")] = UNSET
    end: Annotated[str | UnsetType, Meta(description="End of the window.")] = UNSET
    archived: Annotated[
        str | UnsetType | None, Meta(description="The archive's end; null: not yet archived.")
    ] = UNSET
    judged_until: Annotated[
        str | UnsetType, Meta(description="The time up to which the audit could judge.")
    ] = UNSET
    not_proved: Annotated[
        list[str] | UnsetType, Meta(description="Why not every outcome is proved.")
    ] = UNSET
    counts: AuditCounts | UnsetType = UNSET
    lateness: AuditedLateness | UnsetType = UNSET


class WholeArchiveAudit(ArchiveAudit, kw_only=True):
    """The result of one audit, without the rows by hour and the coverage
    of the archive."""

    reasons: list[AuditedReason] | UnsetType = UNSET
    targets: Annotated[
        list[AuditedMessages] | UnsetType, Meta(description="Most messages first.")
    ] = UNSET
    worst: Annotated[
        list[AuditedMessages] | UnsetType,
        Meta(description="Times with most broken promises, then with the greatest lateness."),
    ] = UNSET
    samples: Annotated[
        list[AuditSample] | UnsetType, Meta(description="Some of the broken promises.")
    ] = UNSET


class ArchiveAudits(Struct, kw_only=True):
    """The newest results."""

    audits: list[ArchiveAudit]
    total: Annotated[int, Meta(ge=0, description="Files in the folder that end in `.json`.")]


class ArchiveAuditsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """How many."""

    limit: Annotated[int, Meta(ge=1, le=1_000, description="Most results in the answer.")] = 100


# --- Dead letters

ReasonName = Annotated[
    str,
    Meta(
        min_length=1,
        title="reason",
        description="A value of the header `chronos-reason`, such as `target-missing`.",
        examples=["target-missing"],
        extra_json_schema={"enum": list(REASON_LABELS)},
    ),
]
Resolution = Literal["replayed", "discarded"]

LetterPosition = Annotated[
    str,
    Meta(
        pattern=POSITION_PATTERN,
        title="position",
        description="The position of a dead letter in its topic, partition:offset.",
        examples=["0:17"],
    ),
]


class DeadLetterInfo(Struct, kw_only=True, omit_defaults=True):
    """A message that could not be delivered."""

    id: Annotated[
        str,
        Meta(description="Id of the message; empty if its record was too large to be passed on."),
    ]
    reason: Annotated[str, Meta(description="The reason, one word.")]
    detail: Annotated[str, Meta(description="An explanation for people.")]
    topic: Annotated[
        str,
        Meta(
            description="Target topic; empty if the message's record was too large to be passed on."
        ),
    ]
    dead_at: Annotated[Instant, Meta(description="When the dead letter was written.")]
    due_at: Annotated[Instant | None, Meta(description="The requested due time.")]
    attempt: Annotated[int, Meta(ge=1, description="Number of the last attempt to deliver it.")]
    source: Annotated[
        str,
        Meta(
            description=(
                "Position of the message's record in the delay topic: topic/partition/offset."
            )
        ),
    ]
    partition: Annotated[int, Meta(ge=0, description="Partition of the dead letter in its topic.")]
    offset: Annotated[int, Meta(ge=0, description="Offset of the dead letter in its partition.")]
    value_bytes: Annotated[
        Count | None, Meta(description="Size of the payload; null for a null payload.")
    ]
    occurrence: Annotated[
        int, Meta(ge=1, description="Occurrence of a series; absent for the first.")
    ] = 1
    replayed: Annotated[
        str | UnsetType,
        Meta(description="The message was a replay: `source` of its first dead letter."),
    ] = UNSET
    resolution: Annotated[
        Resolution | UnsetType,
        Meta(description="How the dead letter was resolved; absent: it was not."),
    ] = UNSET


class DeadLetter(DeadLetterInfo, kw_only=True, omit_defaults=True):
    """A dead letter as a whole."""

    target: Annotated[
        Destination,
        Meta(description="Where the message was to be delivered, with its own headers."),
    ]
    value: Annotated[str | UnsetType | None, Meta(description="The payload as text, or null.")] = (
        UNSET
    )
    value_base64: Annotated[
        str | UnsetType, Meta(description="The payload, if it is not text.")
    ] = UNSET


class DeadLetterPage(Struct, kw_only=True):
    """Dead letters, the newest first."""

    letters: list[DeadLetterInfo]
    after: Annotated[
        str | None,
        Meta(
            description=(
                "Page key: the parameter `after` of the next page; null: everything was read. "
                "Opaque. A page that is not the last one may be short or empty."
            )
        ),
    ]
    records: Annotated[
        int,
        Meta(ge=0, description="Records of the dead-letter topic that were read for this page."),
    ]


class LetterQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters, or which rejected records, and where in their topic the request
    continues."""

    reason: Annotated[ReasonName | UnsetType, Meta(description="Only those with this reason.")] = (
        UNSET
    )
    since: Annotated[
        Time | UnsetType, Meta(description="Only those written at or after this time.")
    ] = UNSET
    until: Annotated[Time | UnsetType, Meta(description="Only those written before this time.")] = (
        UNSET
    )
    after: PageKey | UnsetType = UNSET


LettersOfPage = Annotated[
    int, Meta(ge=1, le=1_000, description="At most this many; a page may hold fewer.")
]
LettersOfPart = Annotated[
    int, Meta(ge=1, le=10_000, description="At most this many in this request.")
]


class DeadLetterCountQuery(LetterQuery):
    """Which dead letters, in the part that is counted."""

    target: Annotated[
        RatePattern | UnsetType,
        Meta(
            description=(
                "Only messages for this topic, or for those that match a pattern as in "
                "`targets.allow`."
            )
        ),
    ] = UNSET
    limit: LettersOfPart = 10_000


class DeadLetterQuery(DeadLetterCountQuery):
    """Which dead letters."""

    id: Annotated[Id | UnsetType, Meta(description="Only those of the message with this id.")] = (
        UNSET
    )
    resolved: Annotated[bool, Meta(description="Also those that were replayed or discarded.")] = (
        False
    )
    limit: LettersOfPage = 100


class RejectedInfo(Struct, kw_only=True):
    """A record that was refused."""

    id: Annotated[
        str,
        Meta(
            description=(
                "Its key, the id of a message; empty without one, or if the record was too large "
                "to be passed on."
            )
        ),
    ]
    reason: Annotated[str, Meta(description="The reason, one word.")]
    detail: Annotated[str, Meta(description="An explanation for people.")]
    topic: Annotated[
        str,
        Meta(
            description="Target topic that its headers name; empty if they name none, or several."
        ),
    ]
    rejected_at: Annotated[Instant, Meta(description="When it was written to the rejected topic.")]
    source: Annotated[
        str, Meta(description="Its position in the delay topic: topic/partition/offset.")
    ]
    partition: Annotated[int, Meta(ge=0, description="Its partition in the rejected topic.")]
    offset: Annotated[int, Meta(ge=0, description="Its offset in that partition.")]
    value_bytes: Annotated[
        Count | None, Meta(description="Size of the payload; null for a null payload.")
    ]


class RejectedRecord(RejectedInfo, kw_only=True, omit_defaults=True):
    """A rejected record as a whole."""

    headers: Annotated[
        dict[str, str | Binary | list[str | Binary | None] | None] | UnsetType,
        Meta(description="Its headers as they were sent. Absent without the role `payload`."),
    ] = UNSET
    value: Annotated[str | UnsetType | None, Meta(description="The payload as text, or null.")] = (
        UNSET
    )
    value_base64: Annotated[
        str | UnsetType, Meta(description="The payload, if it is not text.")
    ] = UNSET


class RejectedPage(Struct, kw_only=True):
    """Rejected records, the newest first."""

    rejected: list[RejectedInfo]
    after: Annotated[
        str | None,
        Meta(
            description=(
                "Page key: the parameter `after` of the next page; null: everything was read. "
                "Opaque. A page that is not the last one may be short or empty."
            )
        ),
    ]
    records: Annotated[
        int, Meta(ge=0, description="Records of the rejected topic that were read for this page.")
    ]


Source = Annotated[
    str,
    Meta(
        min_length=1,
        title="source",
        description="A partition of the delay topic, or a position in it.",
        examples=["chronos.delay/3", "chronos.delay/3/4711"],
    ),
]


class RejectedFilter(LetterQuery):
    """Which rejected records."""

    target: Annotated[
        str | UnsetType,
        Meta(
            description=(
                "Only records that name this target topic, or one that matches a pattern. Any "
                "text: some were refused because what they name is no topic."
            )
        ),
    ] = UNSET
    source: Annotated[Source | UnsetType, Meta(description="Only those that came from there.")] = (
        UNSET
    )
    header: Annotated[
        Annotated[list[HeaderCondition], Meta(max_length=CONDITIONS_MAX)] | UnsetType,
        Meta(
            description=(
                "Only records with this header, `NAME=VALUE`. May be repeated; all must be there. "
                "Needs the role `payload`."
            )
        ),
    ] = UNSET


class RejectedCountQuery(RejectedFilter):
    """Which rejected records, in the part that is counted."""

    by_header: Annotated[
        HeaderName | UnsetType,
        Meta(
            description=(
                "Count them also by the value of this header, such as one with the name of the "
                "producer. Needs the role `payload`."
            )
        ),
    ] = UNSET
    limit: LettersOfPart = 10_000


class RejectedQuery(RejectedFilter):
    """Which rejected records."""

    id: Annotated[
        Id | UnsetType,
        Meta(
            description=(
                "Only those with this key. Or a generated id, or a position: the record there."
            )
        ),
    ] = UNSET
    limit: LettersOfPage = 100


class RejectedCount(Struct, kw_only=True, omit_defaults=True, gc=False):
    """Number of rejected records with one reason, one target, and from one partition."""

    reason: str
    topic: str
    source: Annotated[str, Meta(description="The partition of the delay topic: topic/partition.")]
    header: Annotated[
        str | UnsetType,
        Meta(
            description=(
                "With `by_header`: the value of that header as text, of a repeated one the first; "
                "empty without it."
            )
        ),
    ] = UNSET
    records: Annotated[int, Meta(ge=1)]


class RejectedCounts(Struct, kw_only=True):
    """The counts of one part. Repeat the request with `after` until that is null, and add them
    up."""

    counts: list[RejectedCount]
    after: Annotated[
        str | None, Meta(description="Where the next request continues; null: everything was read.")
    ]
    records: Annotated[int, Meta(ge=0, description="Records of the rejected topic that were read.")]


class DeadLetterSelection(Struct, forbid_unknown_fields=True, kw_only=True):
    """The dead letters to replay or discard, of those that are not resolved: `id`, or `positions`,
    or a filter, or `all`."""

    id: Annotated[
        Id | UnsetType, Meta(description="The newest one of the message with this id.")
    ] = UNSET
    positions: Annotated[
        Annotated[list[LetterPosition], Meta(min_length=1, max_length=1_000)] | UnsetType,
        Meta(description="Those at these positions; one that is resolved is left out."),
    ] = UNSET
    target: Annotated[
        RatePattern | UnsetType,
        Meta(description="Those for this topic, or for those that match a pattern."),
    ] = UNSET
    reason: Annotated[ReasonName | UnsetType, Meta(description="Those with this reason.")] = UNSET
    since: Annotated[Time | UnsetType, Meta(description="Those written at or after this time.")] = (
        UNSET
    )
    until: Annotated[Time | UnsetType, Meta(description="Those written before this time.")] = UNSET
    all: Annotated[
        bool | UnsetType,
        Meta(description="All of them. Only true is valid."),
    ] = UNSET
    dry_run: Annotated[
        bool,
        Meta(
            description=(
                "Only count them; nothing is written. `refused` has those that would be refused."
            )
        ),
    ] = False
    anyway: Annotated[
        bool,
        Meta(
            description=(
                "Replay also those whose cause is still there, such as a missing target: they "
                "will fail again. Those that are `final` stay as they are. Of a replay only."
            )
        ),
    ] = False
    limit: Annotated[
        int, Meta(ge=1, le=10_000, description="At most this many in this request.")
    ] = 1_000
    after: Annotated[
        PageKey | UnsetType,
        Meta(description="`after` of the answer before: where this request continues."),
    ] = UNSET


class DeadLetterCount(Struct, kw_only=True, gc=False):
    """Number of dead letters with one reason and one target."""

    reason: str
    topic: str
    letters: Annotated[int, Meta(ge=1)]


class DeadLetterCounts(Struct, kw_only=True):
    """The counts of one part. Repeat the request with `after` until that is null, and add them
    up."""

    counts: list[DeadLetterCount]
    after: Annotated[
        str | None, Meta(description="Where the next request continues; null: everything was read.")
    ]
    records: Annotated[
        int, Meta(ge=0, description="Records of the dead-letter topic that were read.")
    ]


class DeadLetterRefusal(Struct, kw_only=True):
    """Dead letters that cannot be replayed, or whose cause is still there, by reason. They stay as
    they are."""

    final: Annotated[
        bool,
        Meta(
            description=(
                "They cannot be replayed, not with `anyway` either: their records would be refused."
            )
        ),
    ]
    reason: str
    letters: Annotated[int, Meta(ge=1)]
    id: Annotated[str, Meta(description="The id of the first of them.")]
    detail: Annotated[str, Meta(description="An explanation for the first of them.")]


class DeadLetterResult(Struct, kw_only=True):
    """The result of one request. Repeat the request with `after` until that is null."""

    matched: Annotated[int, Meta(ge=0, description="Dead letters that were selected.")]
    resolved: Annotated[
        int, Meta(ge=0, description="Those that were replayed or discarded; 0 in a dry run.")
    ]
    counts: list[DeadLetterCount]
    refused: list[DeadLetterRefusal]
    after: Annotated[
        str | None, Meta(description="Where the next request continues; null: everything was read.")
    ]
    records: Annotated[
        int, Meta(ge=0, description="Records of the dead-letter topic that were read.")
    ]


SHARDS_MAX = 1_024
"""Most shards of a registration."""

TOPICS_MAX = 100
"""Most topics of a registration."""

NAME_CHARACTERS_MAX = 250
"""Longest name of a cluster, and of a namespace or key of the configuration."""

VALUE_CHARACTERS_MAX = 16_384
"""Longest value of the configuration."""

Short = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
ClusterName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=NAME_CHARACTERS_MAX,
        title="cluster",
        description="Name of a cluster (`cluster`).",
    ),
]
ConfigName = Annotated[
    str,
    Meta(
        min_length=1,
        title="name",
        description="Namespace of the configuration, or key in one: at most 250 characters.",
    ),
]
Address = Annotated[
    str,
    Meta(
        max_length=1_000,
        pattern=ADDRESS_PATTERN,
        title="URL",
        description="URL of a node, without credentials.",
    ),
]
Permissions = Annotated[
    list[Literal["read", "write"]],
    Meta(
        max_length=2,
        description="What clients may do: follow the topic's pending messages, write to it.",
    ),
]
StateVersion = Annotated[
    int,
    Meta(
        ge=0,
        le=2**63 - 1,
        description=(
            "Grows with every change of the registration, also across restarts: the time of the "
            "change (epoch ms). An older one never displaces a newer one. At most a day ahead of "
            "the clock of the node asked."
        ),
    ),
]
Partitions = Annotated[
    int, Meta(ge=1, le=SHARDS_MAX, description="Partitions of the topic: the number of shards.")
]


class RegisteredShard(Struct, forbid_unknown_fields=True, kw_only=True):
    """A node's replica of a shard."""

    shard: ShardNumber
    role: Literal["master", "follower"]
    epoch: Annotated[
        int,
        Meta(
            ge=0,
            le=2**63 - 1,
            description="The role epoch. Of two masters the greater one is the master.",
        ),
    ]


class RegisteredTopic(Struct, forbid_unknown_fields=True, kw_only=True):
    """A topic whose partitions are shards."""

    topic: TopicName
    partitions: Partitions
    permissions: Permissions


class RegistrationBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A node with all that it serves; it replaces what was registered before."""

    cluster: ClusterName
    instance: Annotated[Short, Meta(description="Id of the node's data directory.")]
    address: Address
    version: Annotated[Short, Meta(description="Version of Chronos.")]
    state_version: StateVersion
    writable: Annotated[bool, Meta(description="False: the node is drained.")] = True
    expire_after: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=86_400_000,
                description="Milliseconds after which it expires; absent: 2 minutes.",
            ),
        ]
        | UnsetType
    ) = UNSET
    shards: Annotated[list[RegisteredShard], Meta(max_length=SHARDS_MAX)]
    topics: (
        Annotated[
            list[RegisteredTopic],
            Meta(
                max_length=TOPICS_MAX,
                description="Counts for the shards that the node is master of; null: as before.",
            ),
        ]
        | None
    ) = None


class NodeAddress(Struct, kw_only=True):
    """A node, and where to reach it."""

    node: str
    address: str


class ShardMaster(Struct, kw_only=True):
    """The registered master of a shard."""

    shard: ShardNumber
    master: NodeAddress


class RegistrationResult(Struct, kw_only=True):
    """The result of a registration."""

    result: Annotated[
        Literal["registered", "ignored"],
        Meta(
            description=(
                "`ignored`: a newer state of the node, or of another node with its address, is "
                "registered."
            )
        ),
    ]
    state_version: Annotated[
        StateVersion, Meta(description="The state version that is registered now.")
    ]
    node: Annotated[str, Meta(description="The node that has it.")]
    refused: Annotated[
        list[ShardNumber],
        Meta(
            description=(
                "Shards of which another node is registered as master with a greater role epoch."
            )
        ),
    ]
    masters: Annotated[
        list[ShardMaster], Meta(description="The masters of the shards that the node follows.")
    ]


class UnregistrationResult(Struct, kw_only=True):
    """The result of an un-registration."""

    result: Annotated[
        Literal["removed", "ignored", "unknown"],
        Meta(
            description=(
                "`ignored`: a newer state of the node is registered. `unknown`: the node was not "
                "registered."
            )
        ),
    ]


class RegisteredNode(Struct, kw_only=True):
    """A registered node."""

    cluster: str
    node: str
    instance: str
    address: str
    version: str
    state_version: StateVersion
    writable: Annotated[bool, Meta(description="False: the node is drained.")]
    registered_at: Annotated[Instant, Meta(description="Time of its last registration.")]
    shards: list[RegisteredShard]


class RegisteredNodes(Struct, kw_only=True):
    """The registered nodes."""

    registry: Annotated[str, Meta(description="The node whose registry answers.")]
    nodes: list[RegisteredNode]


class ShardRoute(Struct, kw_only=True):
    """The nodes that serve a shard."""

    shard: ShardNumber
    permissions: Permissions
    master: Annotated[NodeAddress | None, Meta(description="null: none is registered.")]
    followers: list[NodeAddress]


class ShardRoutes(Struct, kw_only=True, omit_defaults=True):
    """The routes of a topic."""

    cluster: str
    topic: str
    partitions: Partitions
    routes: Annotated[
        list[ShardRoute],
        Meta(description="By shard. A shard without a registered node is missing."),
    ]


class TopicInCluster(Struct, kw_only=True):
    """A registered topic."""

    cluster: str
    topic: str
    partitions: Partitions
    permissions: Permissions


class RegisteredTopics(Struct, kw_only=True):
    """The registered topics."""

    topics: list[TopicInCluster]


class RegisteredCluster(Struct, kw_only=True):
    """A cluster with registered nodes."""

    cluster: str
    nodes: list[str]
    shards: Annotated[list[ShardNumber], Meta(description="Shards with at least one node.")]


class RegisteredClusters(Struct, kw_only=True):
    """The clusters with registered nodes."""

    clusters: list[RegisteredCluster]


class Namespaces(Struct, kw_only=True):
    """The namespaces of the configuration."""

    namespaces: list[str]


class NamespaceValues(Struct, kw_only=True):
    """The values of one namespace."""

    namespace: str
    values: dict[str, str]


class ConfigEntry(Struct, kw_only=True):
    """One value of the configuration."""

    registry: Annotated[str, Meta(description="The node whose registry answers.")]
    namespace: str
    key: str
    value: str


class ConfigChange(Struct, forbid_unknown_fields=True, kw_only=True):
    """A value to set."""

    value: Annotated[str, Meta(max_length=VALUE_CHARACTERS_MAX)]


# --- Queries


class RegistryQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which cluster."""

    cluster: Annotated[ClusterName, Meta(description="Default: all.")] | UnsetType = UNSET


class OneClusterQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which cluster."""

    cluster: (
        Annotated[ClusterName, Meta(description="Default: that of the node asked.")] | UnsetType
    ) = UNSET


class RoutesQuery(OneClusterQuery):
    """Which routes."""

    topic: (
        Annotated[TopicName, Meta(description="Default: the delay topic of the node asked.")]
        | UnsetType
    ) = UNSET
    shard: Annotated[ShardNumber, Meta(description="Default: all.")] | UnsetType = UNSET


class UnregistrationQuery(OneClusterQuery):
    """Which state of which node."""

    state_version: (
        Annotated[
            StateVersion, Meta(description="The state that ends; a newer one stays. Default: any.")
        ]
        | UnsetType
    ) = UNSET


# --- Names for generators of clients

UNIONS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "Time": (Time, ("EpochMilliseconds", "TimeText")),
    "Delay": (Delay, ("DelayMilliseconds", "DelayText")),
    "HeaderValue": (str | Binary, ("HeaderText",)),
    "HeaderValueOrList": (
        str | Binary | list[HeaderValue],
        ("HeaderText", "HeaderValueList"),
    ),
    "MessageOrBatch": (Message | Batch, ("Batch",)),
    "AcceptedOrList": (Accepted | list[Accepted], ("AcceptedList",)),
}
"""The unions of fields by their names in `/openapi.json`, each with the names of its arms that have
none of their own, in the order of the schema."""
