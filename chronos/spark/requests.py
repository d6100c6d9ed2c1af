"""The values of a backfill that the archive keeps: request, run, attempts and report. JSON names are for ever.

Where they are kept is `ledger`. This module needs neither PySpark nor Arrow.
"""

from msgspec import Struct, field


class Request(Struct, frozen=True, kw_only=True):
    """Which messages to replay, and how."""

    mode: str
    """`missing`, `all`, `gone` or `pending`."""
    from_ms: int | None = None
    to_ms: int | None = None
    """The window of due times in epoch ms, `to_ms` excluded."""
    targets: list[str] = []
    """Names or shell-style patterns of targets; empty: all."""
    headers: list[tuple[str, str]] = []
    """Name and value of headers that a message must have, all of them."""
    ids: list[str] = []
    """Message ids in hexadecimal; empty: all."""
    purpose: str = "backfill"
    """Name under which nothing is sent twice."""
    direct: bool = False
    """True to send straight to the targets instead of the delay topic."""
    over_ms: int | None = None
    """Time in ms that the new due times are spread over; None: all at once."""
    rate: float | None = None
    """Most messages per second; None: no limit."""
    expired: bool = False
    """True to include messages past their `chronos-expire-at`."""
    compacted: bool = False
    """True to include messages for compacted targets, where a replay takes the place of a newer record of its key."""
    options: list[str] = field(name="said", default_factory=list)
    """The options of the command, as given; an unfinished run is resumed by the same options."""


class Attempt(Struct, kw_only=True):
    """One attempt at sending a run."""

    number: int
    began_ms: int
    is_fenced: bool = False
    """True if every producer of the attempt is fenced."""


class BackfillRun(Struct, kw_only=True):
    """`run.json`."""

    run: str
    state: str
    """`sending`, `done` or `abandoned`."""
    request: Request
    planned_ms: int
    source: str
    """The delay topic that was archived."""
    topic: str
    """The topic that the run sends to."""
    topic_id: str
    """Id of that topic: a topic of the same name with another id is another topic."""
    begin: dict[str, int]
    """Last stable offset of each of its partitions before anything was sent."""
    rows: list[int]
    """Number of rows of each part."""
    attempts: list[Attempt] = []

    @property
    def total(self) -> int:
        """Number of messages to send."""
        return sum(self.rows)


class PlanSample(Struct, frozen=True, kw_only=True):
    """One message of a plan, for people to look at."""

    source: str
    id: bytes
    target: str
    outcome: str
    due_ms: int
    bytes: int


class GonePartition(Struct, frozen=True, kw_only=True):
    """The messages of a plan of mode `gone` that one partition held when it was archived."""

    target: str
    partition: int | None
    """None: the archive does not hold their delivery, so their partition is not known."""
    deleted: int
    """Records before the partition's first offset: deleted by retention, or trimmed."""
    lost: int
    """Records that are not there for another reason: the topic was created again, or its log lost them."""
    log_start: int | None
    """The partition's first offset now; None: the topic or partition does not exist, or the partition is not known."""


class Report(Struct, frozen=True, kw_only=True):
    """`report.json`: the counts of a plan, or of an ended run."""

    run: str
    state: str
    """`planned`, `sending`, `done` or `abandoned`."""
    request: Request
    messages: int
    """Messages in the plan; of an ended run: messages sent."""
    bytes: int
    """Sum of their payloads' sizes."""
    sent_before: int
    """Messages left out because they were sent before for the same purpose."""
    expired: int
    """Messages left out because they are past their `chronos-expire-at`."""
    too_large: int = 0
    """Messages left out because they exceed `max.message.bytes` of the topic they go to."""
    no_target: int = 0
    """Direct messages left out because the target does not exist, or is compacted and they have no key."""
    compacted: int = 0
    """Messages left out because their target is compacted."""
    first_due_ms: int | None
    last_due_ms: int | None
    outcomes: dict[str, int]
    targets: dict[str, int]
    """Messages by target; the targets with most messages."""
    absent_targets: list[str]
    """Targets that the brokers do not have: Chronos dead-letters their messages, a direct replay leaves them out."""
    samples: list[PlanSample]
    planned_ms: int
    judged: dict[str, int] = {}
    """All messages of the window for the requested targets and ids, by the audit's outcome."""
    changed_targets: dict[str, str] = {}
    """Targets that no longer hold what was archived from them: `deleted`, `recreated` or `truncated`."""
    gone: list[GonePartition] = []
    """Mode `gone`: the messages to send, by the partition that held them."""
    ended_ms: int | None = None
    attempts: int = 0
    archived_ms: int | None = None
    """The end of the archive when the plan was made, epoch ms: messages due behind it may be left out; 0: it had none yet.
    None: a plan of an older version."""
