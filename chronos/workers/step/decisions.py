"""The decision about a due message: it is delivered, becomes a dead letter, or is kept for a later
time or in a lane.

`decide` is a pure function of the message, of its target as the step finds it, and of the terms of
the step; `push` applies its outcome. The first of these reasons counts: the message's own fate
(`core.shard.fate`: it has expired, its series skips or ends), forbidden, missing, no key for a
compacted topic, refused by the broker before, the message waits in a lane, the target is set aside,
too large."""

from collections.abc import Mapping, Sequence, Set

from msgspec import Struct

from chronos.core.cron import ZONE_DATA, ZoneData
from chronos.core.keys import LIMITED, Lane, murmur2
from chronos.core.message import TARGET_KEY, Entry, Reason, receipt
from chronos.core.series import repetition_of
from chronos.core.shard.fate import Dead, Fate, Skips
from chronos.core.shard.progress import Outcome
from chronos.core.shard.rules import Rules
from chronos.core.size import batch_bytes
from chronos.core.timefmt import format_time
from chronos.workers.step.lanes import lane_for, why_parked
from chronos.workers.step.targets import SECOND_LOOK_MS, Retries, SetAside, Target

RECEIPT_BYTES = 512
"""More than a receipt adds to a message: a message smaller than its topic's limit by this much
needs no exact size."""

JITTER_STEPS = 1_000
"""Resolution of the jitter of a retry."""

NO_LANES: frozenset[Lane] = frozenset()


OwnHeaders = dict[str, bytes | None] | list[tuple[str, bytes | None]]
"""Headers of a record that is made: a list only where a name is repeated."""


def joined(headers: OwnHeaders, more: Mapping[str, bytes | None]) -> OwnHeaders:
    """Add headers of other names, and return the headers."""
    if isinstance(headers, dict):
        headers.update(more)
    else:
        headers.extend(more.items())
    return headers


class DueMessage(Struct, frozen=True, gc=False):
    """A selected message."""

    due_ms: int
    """With `offset`: the position at which it was selected (epoch ms)."""
    offset: int
    entry: Entry
    size: int
    """Bytes of the packed entry."""
    left_lane: int | None = None
    """The partition of the lane that it leaves, within the rate of its target; None: it is due."""
    has_token: bool = True
    """The rate of its target allows one more message."""
    refused_why: str | None = None
    """The error of its last attempt if the broker refused that and it is not decided yet; else
    None."""
    fate: Fate | None = None


class StepTarget(Struct, frozen=True, kw_only=True):
    """A target as one step finds it."""

    topic: str
    described: Target
    refusal: tuple[Reason, str] | None
    """Why every message for it is dead-lettered; None: not every one is."""
    set_aside: SetAside | None = None
    """Its state if it refuses messages."""
    waits: bool = False
    """True if the target is set aside, and this step does not attempt it."""
    ready_ms: int = 0
    """When the rate of a target that is set aside allows a message (epoch ms)."""

    @property
    def plain_bytes(self) -> int:
        """The packed size (bytes) up to which a message without options, lane and earlier attempts
        is delivered; -1: no size is certain."""
        info = self.described.info
        if (
            info is None
            or self.refusal is not None
            or self.set_aside is not None
            or not self.described.is_plain
        ):
            return -1
        return info.bytes_max - RECEIPT_BYTES


class StepTerms(Struct, frozen=True, kw_only=True):
    """The part of a step that the decisions of all its messages rest on."""

    now_ms: int
    shard: int
    source_prefix: bytes
    """`<topic>/<partition>/` of the delay partition."""
    retries: Retries
    occupied: Set[Lane] = NO_LANES
    """The lanes with messages that leave after this step: a due message follows them."""
    unlimited: Set[Lane] = NO_LANES
    """The lanes that are not empty, without those of rate limits: a message that waited for a rate
    follows them."""
    zone_data: ZoneData = ZONE_DATA

    def headers(self, entry: Entry, offset: int) -> OwnHeaders:
        """Return new headers of a message as it is delivered: its own and the receipt."""
        more = receipt(entry, offset, self.shard, self.source_prefix)
        # No header of a user has the name of one of the receipt.
        return joined(
            dict(entry.headers) if type(entry.headers) is dict else [*entry.headers], more
        )


class Deliver(Struct, frozen=True, gc=False):
    """The message is written to its target."""

    next_ms: int = 0
    """The due time (epoch ms) of the next occurrence of its series; 0: there is none."""


class DeadLetter(Struct, frozen=True, gc=False):
    """The message is written to the dead-letter topic."""

    reason: Reason
    detail: str
    next_ms: int = 0
    """The due time (epoch ms) of the next occurrence of its series; 0: there is none."""
    headers: OwnHeaders | None = None
    """`StepTerms.headers` of the message, where the decision needed them."""


class Decided(Struct, frozen=True, gc=False):
    """A decision whose detail has no number yet. The fields are as in `Decision`; `next_ms` is its
    `next_due_ms`."""

    outcome: Outcome
    reason: int
    detail: str
    next_ms: int
    occurrence: int
    attempt: int
    lane: int = 0


class Keep(Decided, frozen=True, gc=False):
    """The message, or its series, stays pending."""

    takes_token: bool = False
    """True if the message leaves its lane, which takes a token if the lane was that of a rate."""


def target_refusal(topic: str, target: Target, rules: Rules) -> tuple[Reason, str] | None:
    """Return why every message for an existing or forbidden topic is dead-lettered; None if not
    every one is."""
    if not rules.allows(topic):
        return Reason.FORBIDDEN_TARGET, "targets.allow and targets.deny"
    if target.info is not None and not target.info.writable:
        return Reason.FORBIDDEN_TARGET, "Kafka does not let Chronos write"
    return None


def decide(
    message: DueMessage, target: StepTarget, terms: StepTerms
) -> Deliver | DeadLetter | Keep:
    """Return the outcome of a message."""
    entry, now_ms, info = message.entry, terms.now_ms, target.described.info
    fate, next_ms = message.fate, 0
    if fate is not None:
        if isinstance(fate, Skips):
            return Keep(Outcome.SKIPPED, 0, "", fate.next_ms, fate.occurrence, 1)
        if isinstance(fate, Dead):
            return DeadLetter(fate.reason, fate.detail, fate.next_ms)
        next_ms = fate.next_ms
    if target.refusal is not None:
        return DeadLetter(*target.refusal, next_ms)
    if info is None:
        return _decide_missing(message, target.described, now_ms, next_ms)
    if info.compacted and entry.key is None:
        detail = f"{target.topic} is compacted and takes no message without a key: set {TARGET_KEY}"
        return DeadLetter(Reason.NO_KEY, detail, next_ms)
    set_aside, left_lane = target.set_aside, message.left_lane
    if message.refused_why is not None:
        return _decide_refused(message, target, terms, next_ms)
    if left_lane is None:
        before = terms.occupied if set_aside is None else terms.unlimited
    else:
        before = terms.unlimited if left_lane == LIMITED else NO_LANES
    lane = lane_for(entry, info, before, message.has_token or set_aside is not None)
    if lane is not None:
        reason = Reason.RATE_LIMITED if lane == LIMITED else Reason.NO_LEADER
        detail = why_parked(target.topic, lane)
        return Keep(
            Outcome.PARKED,
            reason,
            detail,
            0,
            entry.occurrence,
            entry.attempt,
            lane,
            takes_token=True,
        )
    if set_aside is not None and (target.waits or not message.has_token):
        # Messages that were attempted before come last, so that one of them does not hold up the
        # others.
        next_ms = max(set_aside.next_ms, target.ready_ms, now_ms + 1) + (entry.attempt > 1)
        detail = (
            f"{target.topic} refuses messages and is attempted again after a pause: {set_aside.why}"
        )
        return _deferred(entry, Reason.REFUSED_BY_BROKER, detail, next_ms, takes_token=True)
    if message.size > info.bytes_max - RECEIPT_BYTES:
        headers = terms.headers(entry, message.offset)
        size = batch_bytes(entry.key, entry.value, headers)
        if size > info.bytes_max:
            detail = f"{size} bytes; {target.topic} takes {info.bytes_max}"
            return DeadLetter(Reason.TOO_LARGE, detail, next_ms, headers)
    return Deliver(next_ms)


def _deferred(
    entry: Entry, reason: Reason, detail: str, next_ms: int, *, takes_token: bool = False
) -> Keep:
    return Keep(
        Outcome.DEFERRED,
        reason,
        detail,
        next_ms,
        entry.occurrence,
        entry.attempt,
        takes_token=takes_token,
    )


def _decide_missing(
    message: DueMessage, target: Target, now_ms: int, next_ms: int
) -> DeadLetter | Keep:
    """Dead-letter a message whose target was not found after the second description of the topic;
    else defer it.

    Messages for a topic that is known to be missing wait for the same time each, so that no step
    has all of them."""
    entry = message.entry
    # The due time of an occurrence is not in its entry: it waits for the next description.
    known_ms = (
        message.due_ms if entry.options is not None else max(entry.due_ms, entry.timestamp_ms)
    )
    # A description from before a message was due proves nothing: the topic may have been created
    # since.
    if target.is_missing and known_ms <= target.described_ms:
        return DeadLetter(Reason.TARGET_MISSING, "the topic does not exist", next_ms)
    since_ms = known_ms if target.is_missing and entry.options is None else target.described_ms
    detail = "the topic was not found, and is looked for once more"
    return _deferred(
        entry, Reason.TARGET_MISSING, detail, max(since_ms + SECOND_LOOK_MS, now_ms + 1)
    )


def _decide_refused(
    message: DueMessage, target: StepTarget, terms: StepTerms, next_ms: int
) -> DeadLetter | Keep:
    """Retry with exponential backoff and jitter computed from position and attempt; dead-letter
    after the last attempt."""
    entry, set_aside, why = message.entry, target.set_aside, message.refused_why
    assert why is not None
    attempts_max = terms.retries.attempts_max
    if entry.options is not None and entry.options.attempts_max:
        attempts_max = min(attempts_max, entry.options.attempts_max)
    if set_aside is not None and set_aside.is_proven:
        since = format_time(set_aside.since_ms)
        detail = (
            f"refused by the broker, like every message for {target.topic} since {since}: {why}"
        )
        return DeadLetter(Reason.REFUSED_BY_BROKER, detail, next_ms)
    if entry.attempt >= attempts_max:
        return DeadLetter(
            Reason.REFUSED_BY_BROKER, f"refused by the broker every time: {why}", next_ms
        )
    backoff_ms = terms.retries.pause_ms(entry.attempt)
    jitter = murmur2(b"%d-%d-%d" % (message.due_ms, message.offset, entry.attempt)) % JITTER_STEPS
    again_ms = terms.now_ms + backoff_ms // 2 + backoff_ms * jitter // (2 * JITTER_STEPS)
    return Keep(
        Outcome.RETRY, Reason.REFUSED_BY_BROKER, why, again_ms, entry.occurrence, entry.attempt + 1
    )


def offset_s(entry: Entry, made: Decided, zone_data: ZoneData) -> int | None:
    """Return the zone's offset from UTC (s) at the next time that a decision gives a series by its
    cron expression; None for any other decision."""
    repetition = repetition_of(entry)
    if repetition is None or not repetition.cron or not made.next_ms:
        return None
    if made.outcome in (Outcome.RETRY, Outcome.DEFERRED):
        return None
    if (
        entry.occurrence == 0
        and repetition.planned_ms == made.next_ms
        and zone_data.next_cron(repetition.cron, repetition.zone, made.next_ms - 1) != made.next_ms
    ):
        # An upsert kept the time of the message before: the rhythm has no such time.
        return None
    return zone_data.offset_s(repetition.cron, repetition.zone, made.next_ms)


def within_targets(entries: Sequence[Entry], targets_max: int) -> int:
    """Return how many leading entries, at least one, have at most `targets_max` targets."""
    seen: set[str] = set()
    for at, entry in enumerate(entries):
        seen.add(entry.target)
        if len(seen) > targets_max:
            return at
    return len(entries)
