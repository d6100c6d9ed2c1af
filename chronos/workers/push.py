"""The push worker: decides what becomes of each selected message, and writes the transaction.

Looks before it produces, so that a missing topic or a message too large for its topic never poisons a transaction
(law 8); and finds a culprit that nobody could foresee by halving the selection until it stands alone.
"""

from collections.abc import Callable, Iterable, Mapping

import structlog
from msgspec import Struct

from chronos.core.codec import unpack_entry
from chronos.core.keys import murmur2, parse_generated_id, partition_of
from chronos.core.message import (
    ATTEMPT,
    DETAIL,
    DUE_AT,
    ID,
    REASON,
    SOURCE,
    TARGET_KEY,
    TARGET_TOPIC,
    Entry,
    Reason,
    Record,
    Rejection,
    receipt,
)
from chronos.core.progress import Decision, Outcome
from chronos.core.rules import Rules
from chronos.core.shard import Selection
from chronos.core.size import batch_bytes
from chronos.errors import ConfigurationError, LogUnavailable
from chronos.ports import Outgoing, TopicInfo, TopicLog, TopicSpec

log = structlog.get_logger("chronos.push")

LOOK_EVERY_MS = 10_000
"""How long a look at an existing target topic is good."""

SECOND_LOOK_MS = 2_000
"""A topic is missing only when a second look, so much later, does not find it either (DESIGN section 5)."""

NO_LEADER_WAIT_MS = 1_000
"""When to try a partition without a leader again."""

NOT_YET = TopicInfo(id="", partitions=1, leaderless=frozenset({0}), bytes_max=0)
"""A topic that could not be created at the moment: its messages wait as for a leader."""

ANSWER_S = 2.0
"""How long a broker may take to answer until brokers are gone."""

RECEIPT_BYTES = 512
"""More than a receipt adds to a message; below its topic's limit by so much nothing needs to be weighed exactly."""


LOOKS_MAX = 10_000
"""So many topics are remembered without a thought; a step names no more than it has messages."""

LOOK_FORGOTTEN_MS = 60_000
"""Beyond that, those that were not looked at for so long are forgotten."""


class Look(Struct, kw_only=True):
    """What is known of a target topic."""

    info: TopicInfo | None
    looked_ms: int
    missing_since_ms: int | None
    """The first of the looks in a row that did not find it."""


class PlannedTransaction(Struct, kw_only=True):
    """What a transaction will hold."""

    messages: list[Outgoing]
    decisions: list[Decision]
    due_ms: list[int]
    """When each message that is delivered was due, in order."""


class Ready(Struct, kw_only=True):
    """What a selection becomes, if its targets are then as they were when this was made."""

    selection: Selection
    limits_by_target: dict[str, int]
    """The targets and what they took, as `_fast_path_limits` tells."""
    poison_offset: int | None
    plan: PlannedTransaction


class Targets:
    """Fresh looks at target topics, remembered for a while."""

    def __init__(self, log_port: TopicLog, *, creates: Callable[[str], bool]) -> None:
        """`creates`: whether a topic that is missing is to be created."""
        self._log = log_port
        self._creates = creates
        self._looks: dict[str, Look] = {}

    def look(self, topics: Iterable[str], now_ms: int) -> dict[str, Look]:
        """What is known of each topic, asked again where that is too old."""
        wanted = set(topics)
        stale = [topic for topic in wanted if self._is_stale(topic, now_ms)]
        if stale:
            self._forget_old(now_ms)
            infos = self._log.describe(stale)
            for topic in stale:
                info = infos[topic]
                if info is None and self._creates(topic):
                    info = self._created(topic)
                self._note(topic, info, now_ms)
        return {topic: self._looks[topic] for topic in wanted}

    def known(self, topics: Iterable[str]) -> dict[str, Look]:
        """What was seen of those that were looked at before, however long ago."""
        return {topic: self._looks[topic] for topic in topics if topic in self._looks}

    def _created(self, topic: str) -> TopicInfo | None:
        """The topic, made now; None: it is refused for what it is. LogUnavailable when no broker answers."""
        info, why = None, ""
        try:
            return self._log.prepare([TopicSpec(name=topic, partitions=-1, settings={})], create=True)[topic]
        except ConfigurationError as error:
            why = str(error)
        except LogUnavailable as error:
            if not self._log.ping(ANSWER_S):
                raise
            info, why = NOT_YET, str(error)
        before = self._looks.get(topic)
        if before is None or before.info not in (None, NOT_YET):
            log.warning("target topic not created", topic=topic, why=why)
        return info

    def _forget_old(self, now_ms: int) -> None:
        """Topics nobody has sent to for long, once there are many of them."""
        if len(self._looks) > LOOKS_MAX:
            self._looks = {
                topic: look for topic, look in self._looks.items() if 0 <= now_ms - look.looked_ms < LOOK_FORGOTTEN_MS
            }

    def _is_stale(self, topic: str, now_ms: int) -> bool:
        look = self._looks.get(topic)
        if look is None:
            return True
        good_for_ms = LOOK_EVERY_MS if look.info is not None and _is_plain(look.info) else SECOND_LOOK_MS
        return not 0 <= now_ms - look.looked_ms < good_for_ms

    def _note(self, topic: str, info: TopicInfo | None, now_ms: int) -> None:
        before = self._looks.get(topic)
        since = before.missing_since_ms if before is not None else None
        if info is None and since is None:
            log.warning("target topic missing", topic=topic, again_in_ms=SECOND_LOOK_MS)
        if info is not None and info.replicas == 1 and (before is None or before.info is None):
            log.warning("target topic has one replica", topic=topic)
        self._looks[topic] = Look(
            info=info,
            looked_ms=now_ms,
            missing_since_ms=None if info is not None else now_ms if since is None else since,
        )

    def forget_all(self) -> None:
        """Something went wrong, or the brokers were out of reach: nothing seen before counts, least of all a miss."""
        self._looks.clear()


class Pusher:
    """Turns a selection and refusals into the messages and the decisions of one transaction."""

    def __init__(
        self,
        log_port: TopicLog,
        rules: Rules,
        *,
        delay_topic: str,
        rejected_topic: str,
        dead_letter_topic: str,
        create_topics: bool,
        attempts_max: int,
        retry_base_ms: int,
        retry_cap_ms: int,
    ) -> None:
        self.targets = Targets(log_port, creates=lambda topic: create_topics and rules.allows(topic))
        self._rules = rules
        self._source_prefix = f"{delay_topic}/{rules.shard}/".encode()
        self._rejected_topic = rejected_topic
        self._dead_letter_topic = dead_letter_topic
        self._attempts_max = attempts_max
        self._retry_base_ms = retry_base_ms
        self._retry_cap_ms = retry_cap_ms
        self.poison_offset: int | None = None
        """Source offset of the message that failed a transaction on its own; the next plan retries or buries it."""
        self._ready: Ready | None = None

    def plan(
        self, selection: Selection, rejections: Iterable[tuple[Record, Rejection]], now_ms: int
    ) -> PlannedTransaction:
        """What to write for the selected messages and the refused records."""
        plan = PlannedTransaction(
            messages=[self._rejection(record, rejection, now_ms) for record, rejection in rejections],
            decisions=[],
            due_ms=[],
        )
        ready, self._ready = self._ready, None
        if not selection.items:
            return plan
        if ready is not None and ready.selection is not selection:
            ready = None
        topics = ready.limits_by_target.keys() if ready is not None else {entry.target for entry in selection.entries}
        looks = self.targets.look(topics, now_ms)
        limits_by_target = self._fast_path_limits(looks)
        if ready is not None:
            if ready.limits_by_target == limits_by_target and ready.poison_offset == self.poison_offset:
                plan.messages += ready.plan.messages
                plan.due_ms = ready.plan.due_ms
                return plan
            _unpack_again(selection, len(selection.items))
        self._write(
            plan, selection, limits_by_target,
            lambda due_ms, offset, entry: self._decide(plan, due_ms, offset, entry, looks[entry.target], now_ms),
        )  # fmt: skip
        return plan

    def plan_ahead(self, selection: Selection) -> None:
        """Do now what the `plan` of this selection would do, if nothing about it is in doubt."""
        limits_by_target = self._fast_path_limits(self.targets.known({entry.target for entry in selection.entries}))
        plan = PlannedTransaction(messages=[], decisions=[], due_ms=[])
        if self._write(plan, selection, limits_by_target, None):
            self._ready = Ready(
                selection=selection, limits_by_target=limits_by_target, poison_offset=self.poison_offset, plan=plan
            )
        else:
            _unpack_again(selection, len(plan.messages))

    def _write(
        self,
        plan: PlannedTransaction,
        selection: Selection,
        limits_by_target: Mapping[str, int],
        decide: Callable[[int, int, Entry], None] | None,
    ) -> bool:
        """The messages that go out as they are; every other one is weighed, or where nobody does it ends with False."""
        shard, prefix = self._rules.shard, self._source_prefix
        append, note = plan.messages.append, plan.due_ms.append
        poison_offset = self.poison_offset
        last_ms, due, stem = -1, b"", b""
        for (due_ms, offset, data), entry in zip(selection.items, selection.entries, strict=True):
            headers = entry.headers
            doubtful = (
                len(data) > limits_by_target.get(entry.target, -1)
                or entry.expire_at_ms is not None
                or offset == poison_offset
                or entry.attempt > 1
                or entry.occurrence > 1
                or type(headers) is not dict
            )
            if doubtful:
                if decide is None:
                    return False
                decide(due_ms, offset, entry)
                continue
            # `message.receipt` written out, into the headers themselves: they were unpacked for this step alone.
            if entry.due_ms != last_ms:
                last_ms = entry.due_ms
                due = b"%d" % last_ms
                stem = b"%d-%b-" % (shard, due)
            at = b"%d" % offset
            headers[ID] = entry.id or stem + at  # type: ignore[call-overload]
            headers[DUE_AT] = due  # type: ignore[call-overload]
            headers[SOURCE] = prefix + at  # type: ignore[call-overload]
            append((entry.target, entry.key, entry.value, headers, -1))
            note(due_ms)
        return True

    def _fast_path_limits(self, looks: Mapping[str, Look]) -> dict[str, int]:
        """The targets that are plainly fine, and the size below which they take any message; every doubt is weighed."""
        return {
            topic: look.info.bytes_max - RECEIPT_BYTES
            for topic, look in looks.items()
            if look.info is not None and _is_plain(look.info) and self._rules.allows(topic)
        }

    def _decide(
        self, plan: PlannedTransaction, due_ms: int, offset: int, entry: Entry, look: Look, now_ms: int
    ) -> None:
        """Deliver, or decide what else becomes of the message."""
        if entry.expire_at_ms is not None and now_ms > entry.expire_at_ms:
            self._dead_letter(plan, due_ms, offset, entry, now_ms, Reason.EXPIRED, f"expired at {entry.expire_at_ms}")
            return
        if not self._rules.allows(entry.target):
            self._dead_letter(
                plan, due_ms, offset, entry, now_ms, Reason.FORBIDDEN_TARGET, "targets.allow and targets.deny"
            )
            return
        if look.info is None:
            assert look.missing_since_ms is not None
            # A look from before the message was due proves nothing: the topic may have been created since.
            if look.looked_ms >= due_ms and look.looked_ms - look.missing_since_ms >= SECOND_LOOK_MS:
                self._dead_letter(
                    plan, due_ms, offset, entry, now_ms, Reason.TARGET_MISSING, "two looks did not find the topic"
                )
            else:
                again_ms = look.looked_ms + SECOND_LOOK_MS
                self._defer(plan, due_ms, offset, entry, Reason.TARGET_MISSING, max(again_ms, now_ms + 1))
            return
        if not look.info.writable:
            self._dead_letter(
                plan, due_ms, offset, entry, now_ms, Reason.FORBIDDEN_TARGET, "Kafka does not let Chronos write"
            )
            return
        if offset == self.poison_offset or (look.info.compacted and entry.key is None):
            self._retry(plan, due_ms, offset, entry, now_ms)
            return
        partition = _partition(entry, look.info, offset)
        if partition is None:
            self._defer(plan, due_ms, offset, entry, Reason.NO_LEADER, now_ms + NO_LEADER_WAIT_MS)
            return
        headers = [*_pairs(entry), *receipt(entry, offset, self._rules.shard, self._source_prefix).items()]
        size = batch_bytes(entry.key, entry.value, headers)
        if size > look.info.bytes_max:
            self._dead_letter(plan, due_ms, offset, entry, now_ms, Reason.TOO_LARGE,
                       f"{size} bytes; {entry.target} takes {look.info.bytes_max}")  # fmt: skip
            return
        plan.messages.append((entry.target, entry.key, entry.value, headers, partition))
        plan.due_ms.append(due_ms)

    def _defer(
        self, plan: PlannedTransaction, due_ms: int, offset: int, entry: Entry, reason: Reason, next_ms: int
    ) -> None:
        plan.decisions.append(
            Decision(due_ms, offset, Outcome.DEFERRED, reason, next_ms, entry.occurrence, entry.attempt)
        )

    def _retry(self, plan: PlannedTransaction, due_ms: int, offset: int, entry: Entry, now_ms: int) -> None:
        """Exponential backoff with jitter drawn from position and attempt; after the last attempt a dead letter."""
        if entry.attempt >= self._attempts_max:
            self._dead_letter(
                plan, due_ms, offset, entry, now_ms, Reason.REFUSED_BY_BROKER, "refused by the broker every time"
            )
            return
        backoff_ms = min(self._retry_cap_ms, self._retry_base_ms << min(entry.attempt - 1, 32))
        jitter = murmur2(b"%d-%d-%d" % (due_ms, offset, entry.attempt)) % 1_000
        next_ms = now_ms + backoff_ms // 2 + backoff_ms * jitter // 2_000
        plan.decisions.append(
            Decision(
                due_ms, offset, Outcome.RETRY, Reason.REFUSED_BY_BROKER, next_ms, entry.occurrence, entry.attempt + 1
            )
        )

    def _dead_letter(
        self, plan: PlannedTransaction, due_ms: int, offset: int, entry: Entry, now_ms: int, reason: Reason, detail: str
    ) -> None:
        """A dead letter carries all that is needed to send it again: its headers, its target and why it ended here."""
        outcome = Outcome.EXPIRED if reason is Reason.EXPIRED else Outcome.DEAD
        plan.decisions.append(Decision(due_ms, offset, outcome, reason, 0, entry.occurrence, entry.attempt))
        headers: list[tuple[str, bytes | None]] = [
            *_pairs(entry),
            *receipt(entry, offset, self._rules.shard, self._source_prefix).items(),
            (TARGET_TOPIC, entry.target.encode()),
        ]
        if entry.key is not None:
            headers.append((TARGET_KEY, entry.key))
        if entry.attempt == 1:
            headers.append((ATTEMPT, b"1"))
        # A key of the user's own is kept; an address as key would be refused when the letter is sent round again.
        own = entry.id is not None and parse_generated_id(entry.id, self._rules.shards) is None
        plan.messages.append(
            self._explained(
                self._dead_letter_topic, entry.id if own else None, entry.value, headers, reason, detail, now_ms
            )
        )

    def _rejection(self, record: Record, rejection: Rejection, now_ms: int) -> Outgoing:
        """The record as it came, with the reason and where it came from."""
        headers = [*(record.headers or ()), (SOURCE, self._source_prefix + b"%d" % record.offset)]
        return self._explained(
            self._rejected_topic, record.key, record.value, headers, rejection.reason, rejection.detail, now_ms
        )

    def _explained(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        reason: Reason,
        detail: str,
        now_ms: int,
    ) -> Outgoing:
        """The record with its reason; without payload and key where the topic would not take it with them."""
        own = self.targets.look([topic], now_ms)[topic].info
        if own is None:
            raise LogUnavailable(f"{topic} is not there: create it again, or restart Chronos, which does")
        why: list[tuple[str, bytes | None]] = [(REASON, reason.label.encode()), (DETAIL, detail[:500].encode())]
        if batch_bytes(key, value, headers + why) > own.bytes_max:
            source = [(name, content) for name, content in headers if name == SOURCE][-1:]
            why[1] = (DETAIL, (detail[:400] + "; too large to be passed on, see chronos-source").encode())
            return topic, None, None, source + why, -1
        return topic, key, value, headers + why, -1


def _unpack_again(selection: Selection, count: int) -> None:
    """The first so many entries: their headers hold receipts, which only a message that goes out as it is may have."""
    selection.entries[:count] = [unpack_entry(data) for _, _, data in selection.items[:count]]


def _is_plain(info: TopicInfo) -> bool:
    return info.writable and not info.compacted and not info.leaderless


def _pairs(entry: Entry) -> list[tuple[str, bytes | None]]:
    return list(entry.headers.items()) if type(entry.headers) is dict else list(entry.headers)  # type: ignore[arg-type]


def _partition(entry: Entry, info: TopicInfo, offset: int) -> int | None:
    """-1: the client's choice; a partition with a leader when not all have one; None: the message must wait."""
    if not info.leaderless:
        return -1
    if entry.key is not None:
        own = partition_of(entry.key, info.partitions)
        return None if own in info.leaderless else own
    led = [partition for partition in range(info.partitions) if partition not in info.leaderless]
    return led[offset % len(led)] if led else None
