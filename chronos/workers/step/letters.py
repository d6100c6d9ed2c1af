"""The records of a step besides deliveries and its progress record: dead letters, rejected and
forwarded records.

`Forwards` keeps its part of law 8: it names the partitions that take no records at the moment, and
the records that are too large for the delay topic with their hop, so that `workers.step.held`
holds what would go to the former and rejects the latter."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from chronos.core.keys import parse_generated_id
from chronos.core.message import (
    ATTEMPT,
    ATTEMPTS,
    CALL,
    DETAIL,
    EXPIRE_AT,
    FORWARDED,
    OCCURRENCE,
    REASON,
    SOURCE,
    TARGET_KEY,
    TARGET_TOPIC,
    Reason,
    Record,
    Rejection,
    folded_name,
)
from chronos.core.series import expires_ms
from chronos.core.shard.order import hop
from chronos.core.shard.rules import Rules
from chronos.core.size import batch_bytes, batch_bytes_max
from chronos.ports import Log, Outgoing, TopicInfo
from chronos.workers.step.decisions import DeadLetter, DueMessage, OwnHeaders, StepTerms, joined
from chronos.workers.step.letter_topics import UNBOUNDED, Refusal
from chronos.workers.step.partitions import Turn
from chronos.workers.step.targets import DESCRIBE_EVERY_MS

HOP_BYTES_MAX = 400
"""Most bytes of the header that names a hop: a topic has at most 249, its numbers and the header's
name at most 80."""


class Forwards:
    """The forwarded records of one shard."""

    def __init__(self, log: Log, topic: str, shard: int) -> None:
        """`topic`: the delay topic."""
        self.topic = topic
        self._log = log
        self._source_prefix = f"{topic}/{shard}/".encode()
        self._info: TopicInfo | None = None
        self._described_ms = 0

    def records(self, forwards: Sequence[tuple[Record, int]]) -> Iterator[Outgoing]:
        """Return each record unchanged but for the header that names its hop, for the partition of
        its id."""
        topic, headers = self.topic, self._headers
        for record, partition in forwards:
            yield topic, record.key, record.value, headers(record), partition

    def _headers(self, record: Record) -> list[tuple[str, bytes | None]]:
        return [*(record.headers or ()), (FORWARDED, hop(self._source_prefix, record))]

    def refusals(
        self, partitions: Iterable[int], now_ms: int, *, age_ms_max: int = DESCRIBE_EVERY_MS
    ) -> dict[int, Refusal]:
        """Return those of the partitions that take no records, by the description of the topic, and
        why. Raises LogUnavailable.

        `age_ms_max`: that of the description.
        """
        info = self._describe(now_ms, age_ms_max)
        if info is None:
            missing = Refusal(why=f"{self.topic} does not exist", passing=False)
            return dict.fromkeys(partitions, missing)
        closed = sorted({*partitions} & info.closed)
        if closed:
            self.forget()
        return {
            partition: Refusal(
                why=f"{self.topic}/{partition} has no leader with enough in-sync replicas",
                passing=True,
            )
            for partition in closed
        }

    def too_large(
        self, forwards: Iterable[tuple[Record, int]], bytes_max: Mapping[int, int], now_ms: int
    ) -> dict[int, str]:
        """Return the records that the delay topic would not take with their hop, or of more bytes
        than their partition takes: offset -> why. A topic that is missing has no limit. Raises
        LogUnavailable."""
        info = self._describe(now_ms)
        topic_max = UNBOUNDED if info is None else info.bytes_max
        too_large = {}
        for record, partition in forwards:
            limit = min(bytes_max[partition], topic_max)
            if (
                batch_bytes_max(record.key, record.value, record.headers or ()) + HOP_BYTES_MAX
                > limit
            ):
                size = batch_bytes(record.key, record.value, self._headers(record))
                if size > limit:
                    too_large[record.offset] = (
                        f"{size} bytes with its hop; {self.topic} takes {limit}"
                    )
        return too_large

    def forget(self) -> None:
        """Drop the description of the topic: after a failure it is not trusted."""
        self._info = None

    def _describe(self, now_ms: int, age_ms_max: int = DESCRIBE_EVERY_MS) -> TopicInfo | None:
        if self._info is None or not 0 <= now_ms - self._described_ms < age_ms_max:
            self._info, self._described_ms = self._log.describe([self.topic])[self.topic], now_ms
        return self._info


LETTER_BYTES = 2_048
"""More than a dead letter has besides two copies of its packed message: receipt, reason,
explanation, and the batch around it."""

DETAIL_CHARS_MAX = 500
"""Most characters of the explanation in a header."""

_LABELS = {reason: reason.label.encode() for reason in Reason}


class LetterRecords:
    """Makes the dead letters and the rejected records of one shard."""

    def __init__(self, rules: Rules, *, rejected_topic: str, dead_letter_topic: str) -> None:
        self._shards = rules.shards
        self.rejected_topic = rejected_topic
        self.dead_letter_topic = dead_letter_topic

    def dead_letter(
        self,
        message: DueMessage,
        letter: DeadLetter,
        terms: StepTerms,
        turn: Turn,
        info: TopicInfo,
        bytes_max: int,
    ) -> Outgoing:
        """Return the dead letter; it carries all that is needed to send the message again: headers,
        target, reason.

        `info`: the description of the dead-letter topic. `bytes_max`: a bound besides that of the
        topic."""
        entry, options = message.entry, message.entry.options
        headers = letter.headers or terms.headers(entry, message.offset)
        more: dict[str, bytes | None] = {TARGET_TOPIC: entry.target.encode()}
        if entry.key is not None:
            more[TARGET_KEY] = entry.key
        if (expire_at_ms := expires_ms(entry)) is not None:
            more[EXPIRE_AT] = b"%d" % expire_at_ms
        if options is not None and options.attempts_max:
            more[ATTEMPTS] = b"%d" % options.attempts_max
        if options is not None and options.repetition is not None and entry.occurrence == 1:
            more[OCCURRENCE] = b"1"
        if entry.attempt == 1:
            more[ATTEMPT] = b"1"
        # A user's key is kept; a generated id as key would be refused when the dead letter is sent
        # again.
        key = entry.id
        if key is not None and parse_generated_id(key, self._shards) is not None:
            key = None
        # Each part of the packed entry is in the letter at most twice: an id is its key too.
        bytes_max = min(bytes_max, info.bytes_max)
        fits = 2 * message.size + LETTER_BYTES <= bytes_max
        return _with_reason(
            _place(self.dead_letter_topic, key, turn, info),
            key,
            entry.value,
            joined(headers, more),
            (letter.reason, letter.detail),
            None if fits else bytes_max,
        )

    def rejected(
        self,
        record: Record,
        rejection: Rejection,
        source: bytes,
        turn: Turn,
        info: TopicInfo,
        bytes_max: int,
    ) -> Outgoing:
        """Return the record with its source and the reason, unchanged but for the hop of a
        forwarded one and the name of its call.

        `info`: the description of the rejected topic. `bytes_max`: a bound besides that of the
        topic."""
        own = [pair for pair in record.headers or () if not _is_of_the_way(pair[0])]
        return _with_reason(
            _place(self.rejected_topic, record.key, turn, info),
            record.key,
            record.value,
            [*own, (SOURCE, source)],
            (rejection.reason, rejection.detail),
            min(bytes_max, info.bytes_max),
        )


def _is_of_the_way(name: str) -> bool:
    """Return whether a header concerns the way of a record to its shard alone, in any spelling."""
    return name == FORWARDED or folded_name(name) == CALL


def _place(topic: str, key: bytes | None, turn: Turn, info: TopicInfo) -> tuple[str, int]:
    """Return topic and partition of a letter; -1: the partition of its key."""
    return topic, -1 if key is not None and not info.closed else turn[topic]


def _with_reason(
    place: tuple[str, int],
    key: bytes | None,
    value: bytes | None,
    headers: OwnHeaders,
    why: tuple[Reason, str],
    bytes_max: int | None,
) -> Outgoing:
    """Return the record with its reason; without payload and key if it would be larger than
    `bytes_max`; None: it is not."""
    (topic, partition), (reason, detail) = place, why
    more = {REASON: _LABELS[reason], DETAIL: detail[:DETAIL_CHARS_MAX].encode()}
    made = joined(headers, more)
    # The bound is several times as fast as the exact size, which is needed near the limit only.
    if (
        bytes_max is None
        or batch_bytes_max(key, value, made) <= bytes_max
        or batch_bytes(key, value, made) <= bytes_max
    ):
        return topic, key, value, made, partition
    pairs = made.items() if isinstance(made, dict) else made
    source = [(name, content) for name, content in pairs if name == SOURCE][-1:]
    more[DETAIL] = (detail[:400] + "; too large to be passed on, see chronos-source").encode()
    return topic, None, None, [*source, *more.items()], partition
