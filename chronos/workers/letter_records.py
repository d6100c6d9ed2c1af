"""The records of the rejected and the dead-letter topic: the original with its source and the reason."""

from chronos.core.keys import parse_generated_id
from chronos.core.message import (
    ATTEMPT,
    ATTEMPTS,
    DETAIL,
    EXPIRE_AT,
    FORWARDED,
    OCCURRENCE,
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
from chronos.core.rules import Rules
from chronos.core.size import batch_bytes, batch_bytes_max
from chronos.ports import Outgoing
from chronos.workers.partitions import Turn
from chronos.workers.targets import Targets

Headers = list[tuple[str, bytes | None]]

LETTER_BYTES = 2_048
"""More than a dead letter has besides two copies of its packed message: receipt, reason, explanation, and the batch around it."""

_LABELS = {reason: reason.label.encode() for reason in Reason}


def letter_headers(entry: Entry, target: bytes) -> dict[str, bytes | None]:
    """Return the headers of a dead letter between the receipt and the reason; `target`: the encoded target."""
    headers: dict[str, bytes | None] = {TARGET_TOPIC: target}
    if entry.key is not None:
        headers[TARGET_KEY] = entry.key
    if entry.expire_at_ms is not None:
        headers[EXPIRE_AT] = b"%d" % entry.expire_at_ms
    options = entry.options
    if options is not None and options.attempts_max:
        headers[ATTEMPTS] = b"%d" % options.attempts_max
    if options is not None and options.repetition is not None and entry.occurrence == 1:
        headers[OCCURRENCE] = b"1"
    if entry.attempt == 1:
        headers[ATTEMPT] = b"1"
    return headers


def pack_reason(reason: Reason, detail: str) -> tuple[bytes, bytes]:
    """Return the values of the headers `chronos-reason` and `chronos-detail`."""
    return _LABELS[reason], detail[:500].encode()


class LetterRecords:
    """Makes these records for one shard."""

    def __init__(
        self, targets: Targets, rules: Rules, *, source_prefix: bytes, rejected_topic: str, dead_letter_topic: str
    ) -> None:
        """`source_prefix`: `<topic>/<partition>/` of the delay partition."""
        self._targets = targets
        self._shards = rules.shards
        self.shard = rules.shard
        self.source_prefix = source_prefix
        self._rejected_topic = rejected_topic
        self.dead_letter_topic = dead_letter_topic

    def dead_letter(
        self, entry: Entry, offset: int, reason: Reason, detail: str, turn: Turn, now_ms: int, bytes_max: int
    ) -> Outgoing:
        """Return the dead letter; it carries all that is needed to send the message again: headers, target, reason."""
        headers = [*self.with_receipt(entry, offset), *letter_headers(entry, entry.target.encode()).items()]
        key = None if entry.id is None else self.key_of(entry.id)
        return self._with_reason(
            self.dead_letter_topic, key, entry.value, headers, reason, detail, turn, now_ms, bytes_max
        )

    def key_of(self, message_id: bytes) -> bytes | None:
        """Return the key of the dead letter of a message with an id of its own.

        A user's key is kept; a generated id as key would be refused when the dead letter is sent again.
        """
        return message_id if parse_generated_id(message_id, self._shards) is None else None

    def rejected(self, record: Record, rejection: Rejection, turn: Turn, now_ms: int, bytes_max: int) -> Outgoing:
        """Return the record with its source and the reason, unchanged but for the hop of a forwarded one."""
        own = [header for header in record.headers or () if header[0] != FORWARDED]
        headers = [*own, (SOURCE, self.source_prefix + b"%d" % record.offset)]
        reason, detail = rejection.reason, rejection.detail
        return self._with_reason(
            self._rejected_topic, record.key, record.value, headers, reason, detail, turn, now_ms, bytes_max
        )

    def with_receipt(self, entry: Entry, offset: int) -> Headers:
        headers = entry.headers.items() if isinstance(entry.headers, dict) else entry.headers
        return [*headers, *receipt(entry, offset, self.shard, self.source_prefix).items()]

    def _with_reason(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        reason: Reason,
        detail: str,
        turn: Turn,
        now_ms: int,
        bytes_max: int,
    ) -> Outgoing:
        """Return the record with its reason; without payload and key if it would be larger than the topic takes, or `bytes_max`."""
        info = self._targets.describe([topic], now_ms)[topic].info
        assert info is not None, "a topic that takes no records is not written to"
        partition = -1 if key is not None and not info.closed else turn[topic]
        label, packed_detail = pack_reason(reason, detail)
        why: Headers = [(REASON, label), (DETAIL, packed_detail)]
        # The bound is several times as fast as the exact size, which is needed near the limit only.
        bytes_max = min(bytes_max, info.bytes_max)
        is_near = batch_bytes_max(key, value, headers + why) > bytes_max
        if is_near and batch_bytes(key, value, headers + why) > bytes_max:
            source = [(name, content) for name, content in headers if name == SOURCE][-1:]
            why[1] = (DETAIL, (detail[:400] + "; too large to be passed on, see chronos-source").encode())
            return topic, None, None, source + why, partition
        return topic, key, value, headers + why, partition
