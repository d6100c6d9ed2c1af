"""The request of a backfill: the command makes it, and `run.json` of the ledger keeps it.

The names in JSON do not change. This module needs neither PySpark nor Arrow: the options of the
command are checked before Spark starts."""

from msgspec import Struct, field


class BackfillRequest(Struct, frozen=True, kw_only=True):
    """Which messages to replay, and how."""

    mode: str
    """`missing`, `all`, `gone`, `pending`, `dead-letters` or `rejected`."""
    reasons: list[str] = []
    """Of modes `dead-letters` and `rejected`: values of `chronos-reason`; empty: all but
    `expired`."""
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
    """True to include messages for compacted targets, where a replay takes the place of a newer
    record of its key."""
    to_topic: str | None = None
    """Topic that all messages are sent to; None: each to its target."""
    to_cluster: str | None = None
    """Kafka's id of the cluster that all messages are sent to; None: the archived one."""
    lost_ms: int | None = None
    """Of a restore, which is of mode `pending`: when the archived service was lost, epoch ms; None:
    no restore."""
    deduplication_ms: int = 0
    """Of a restore: ids delivered in this time (ms) before the loss are sent too, as settled."""
    repeat_unknown: bool = False
    """Of a restore: True to include messages that may have been delivered after the archive's
    end."""
    options: list[str] = field(name="said", default_factory=list)
    """The options of the command, as given; an unfinished run is resumed by the same options."""

    @property
    def is_restore(self) -> bool:
        """True for what `chronos restore` requests."""
        return self.lost_ms is not None

    @property
    def destination(self) -> str:
        """The place whose ledger counts: topic, or cluster and topic; empty: the targets of the
        messages."""
        topic = self.to_topic or ""
        return topic if self.to_cluster is None else f"{self.to_cluster}/{topic}"
