"""The dead letters of one step whose reason is certain: a property of the message, or of its target's description.

The short way of `Pusher` for messages that need a decision, with the result of the long one. Neither a lane, a rate, an
earlier attempt nor an option plays a part in it, so a step with such messages can be planned ahead of its time.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct

from chronos.core.message import DETAIL, DUE_AT, ID, REASON, SOURCE, TARGET_KEY, Entry, Reason
from chronos.core.progress import Decision, Outcome, detail_number
from chronos.core.rules import Rules
from chronos.core.size import batch_bytes
from chronos.ports import TopicInfo
from chronos.workers.letter_counts import IDS_SHOWN
from chronos.workers.letter_records import LETTER_BYTES, LetterRecords, letter_headers, pack_reason
from chronos.workers.planned import PlannedTransaction
from chronos.workers.refusals import Attempt
from chronos.workers.targets import SECOND_LOOK_MS, Target

RECEIPT_BYTES = 512
"""More than a receipt adds to a message: a message smaller than its topic's limit by this much needs no exact size."""

NEVER_MS = 1 << 62
"""Later than any time of a step."""

MISSING = Reason.TARGET_MISSING, "two looks did not find the topic"


class Basis(Struct, frozen=True):
    """Everything that a transaction is planned on, besides its selection and the time; one planned early holds while it is the
    same."""

    terms: Mapping[str, "Terms"]
    poison: Attempt | None
    partition_changes: int
    """`Turn.changes`."""
    dead_letter_topic: TopicInfo | None
    """None: the transaction has no dead letters."""


Certain = tuple[Reason, str]
"""The reason of a dead letter, and its explanation."""


class Terms(Struct, frozen=True):
    """The part of a target's description on which the outcome of its messages rests."""

    bytes_max: int
    """Largest record batch that it takes."""
    is_plain: bool
    """It takes every message that is not too large."""
    takes_keyless: bool
    refusal: Certain | None
    """Why every message for it is dead-lettered; None: not every one is."""
    refused_until_ms: int
    """The last time (epoch ms) from which the messages could be delivered for which that is certain."""

    @property
    def plain_bytes(self) -> int:
        """The packed size up to which a message needs no decision; -1: every one needs a further look."""
        return self.bytes_max - RECEIPT_BYTES if self.is_plain else -1


def refusal_of(topic: str, target: Target, rules: Rules) -> Certain | None:
    """Return why every message for an existing or forbidden topic is dead-lettered; None if that is not so."""
    if not rules.allows(topic):
        return Reason.FORBIDDEN_TARGET, "targets.allow and targets.deny"
    if target.info is not None and not target.info.writable:
        return Reason.FORBIDDEN_TARGET, "Kafka does not let Chronos write"
    if target.holds_progress:
        return Reason.FORBIDDEN_TARGET, f"{topic} is the progress topic of a Chronos, which a message in it would end"
    return None


def keyless_refusal(topic: str) -> Certain:
    """Return why a message without a key is dead-lettered by a compacted topic."""
    return Reason.NO_KEY, f"{topic} is compacted and takes no message without a key: set {TARGET_KEY}"


def second_look_ms(entry: Entry, due_ms: int, target: Target, now_ms: int) -> int | None:
    """Return when a message for a topic that was not found is looked at again (epoch ms); None: it is dead-lettered.

    Messages for a topic that is known to be missing wait for the same time each, so that no step has all of them.
    """
    # The due time of an occurrence is not in its entry: it waits for the next description.
    known_ms = due_ms if entry.options is not None else _deliverable_ms(entry)
    # A description from before a message was due proves nothing: the topic may have been created since.
    if target.is_missing and known_ms <= target.described_ms:
        return None
    since_ms = known_ms if target.is_missing and entry.options is None else target.described_ms
    return max(since_ms + SECOND_LOOK_MS, now_ms + 1)


def _deliverable_ms(entry: Entry) -> int:
    """Return the time (epoch ms) from which a message without options could be delivered, however often it was deferred since."""
    return max(entry.due_ms, entry.timestamp_ms)


def terms_of(topic: str, target: Target, rules: Rules) -> Terms | None:
    """Return the terms of a target without lane and rate limit that is not set aside; None if no outcome is certain."""
    info, refusal, until_ms = target.info, refusal_of(topic, target, rules), NEVER_MS
    if info is None and refusal is None:
        if not target.is_missing:
            return None
        refusal, until_ms = MISSING, target.described_ms
    if refusal is not None or info is None:
        return Terms(0, False, False, refusal, until_ms)
    return None if info.closed else Terms(info.bytes_max, target.is_plain, not info.compacted, None, 0)


class _Case(Struct):
    """The dead letters of one step for one target and reason."""

    reason: Reason
    outcome: Outcome
    target: bytes
    count: int = 0
    detail: str | None = None
    """That of the last letter; nearly always the one of the next."""
    number: int = 0
    """`Decision.detail` for it."""
    packed: tuple[bytes, bytes] = (b"", b"")
    """The values of the headers `chronos-reason` and `chronos-detail`."""


class _Cases(dict[str, _Case]):
    """By target, those with one reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__()
        self._reason = reason

    def __missing__(self, target: str) -> _Case:
        outcome = Outcome.EXPIRED if self._reason is Reason.EXPIRED else Outcome.DEAD
        case = self[target] = _Case(self._reason, outcome, target.encode())
        return case


class StepLetters:
    """The messages of one step that cannot be delivered, for certain."""

    def __init__(
        self,
        plan: PlannedTransaction,
        records: LetterRecords,
        terms: Mapping[str, Terms],
        opened: Callable[[], TopicInfo | None],
        poison_offset: int | None,
        now_ms: int,
    ) -> None:
        """`opened`: returns the description of the dead-letter topic, or None if no letter may be written to it, or not each one."""
        self._plan = plan
        self._records = records
        self._terms = terms
        self._opened = opened
        self._info: TopicInfo | None = None
        self._asked = False
        self._bytes_max = 0
        self._poison_offset = poison_offset
        self._now_ms = now_ms
        self._cases = {
            reason: _Cases(reason)
            for reason in (Reason.EXPIRED, Reason.TOO_LARGE, Reason.NO_KEY, Reason.FORBIDDEN_TARGET, MISSING[0])
        }
        self._expired = self._cases[Reason.EXPIRED]
        self._too_large = self._cases[Reason.TOO_LARGE]
        self.from_ms = 0
        """With `until_ms`: the times of a step (epoch ms) at which the same messages have expired."""
        self.until_ms = NEVER_MS

    def judge(self, due_ms: int, offset: int, data: bytes, entry: Entry) -> bool | None:
        """Dead-letter the message if that is certain, and return True; False: it is to be delivered; None: neither is certain.

        `data`: the packed entry.
        """
        target = entry.target
        terms = self._terms.get(target)
        if (
            terms is None
            or offset == self._poison_offset
            or entry.attempt > 1
            or entry.options is not None
            or type(entry.headers) is not dict
        ):
            return None
        expire_at_ms = entry.expire_at_ms
        case: _Case | None = None
        if expire_at_ms is not None and self._now_ms > expire_at_ms:
            case, detail = self._expired[target], f"expired at {expire_at_ms}"
        elif terms.refusal is not None:
            if _deliverable_ms(entry) > terms.refused_until_ms:
                return None
            case, detail = self._cases[terms.refusal[0]][target], terms.refusal[1]
        elif entry.key is None and not terms.takes_keyless:
            reason, detail = keyless_refusal(target)
            case = self._cases[reason][target]
        elif len(data) <= terms.bytes_max - RECEIPT_BYTES:
            return self._is_alive(expire_at_ms)
        due, at = b"%d" % entry.due_ms, b"%d" % offset
        headers = entry.headers.copy()
        message_id = headers[ID] = entry.id or b"%d-%b-%b" % (self._records.shard, due, at)
        headers[DUE_AT] = due
        headers[SOURCE] = self._records.source_prefix + at
        if case is None:
            size = batch_bytes(entry.key, entry.value, headers)
            if size <= terms.bytes_max:
                return self._is_alive(expire_at_ms)
            case, detail = self._too_large[target], f"{size} bytes; {target} takes {terms.bytes_max}"
        if not self._asked:
            self._asked, self._info = True, self._opened()
            self._bytes_max = 0 if self._info is None else self._info.bytes_max
        info, plan = self._info, self._plan
        # Each part of the packed entry is in the letter at most twice: an id is its key too.
        if info is None or 2 * len(data) + LETTER_BYTES > self._bytes_max:
            return None
        if expire_at_ms is not None:
            self._note_expiry(expire_at_ms)
        if detail != case.detail:
            case.detail = detail
            case.number = detail_number(plan.details, detail)
            case.packed = pack_reason(case.reason, detail)
        headers.update(letter_headers(entry, case.target))
        headers[REASON], headers[DETAIL] = case.packed
        key = None if entry.id is None else self._records.key_of(entry.id)
        partition = -1 if key is not None and not info.closed else plan.turn[self._records.dead_letter_topic]
        plan.messages.append((self._records.dead_letter_topic, key, entry.value, headers, partition))
        plan.decisions.append(Decision(due_ms, offset, case.outcome, case.reason, 0, 1, 1, 0, case.number))
        case.count += 1
        if len(plan.dead.ids) < IDS_SHOWN:
            plan.dead.ids.append(message_id)
        return True

    def _is_alive(self, expire_at_ms: int | None) -> bool:
        """Return False for a message that is to be delivered."""
        if expire_at_ms is not None:
            self._note_expiry(expire_at_ms)
        return False

    def _note_expiry(self, expire_at_ms: int) -> None:
        if self._now_ms > expire_at_ms:
            self.from_ms = max(self.from_ms, expire_at_ms + 1)
        else:
            self.until_ms = min(self.until_ms, expire_at_ms)

    def count(self) -> None:
        """Count the letters in the plan, once all messages are judged."""
        plan = self._plan
        for reason, cases in self._cases.items():
            for target, case in cases.items():
                if case.count:
                    plan.dead.count(reason, target, case.count)
                    plan.dead_letters += case.count
                    plan.undelivered[target] += case.count
