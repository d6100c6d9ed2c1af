"""Dead letters and rejected records, decoded from the records of their topics, and the records that
replay a dead letter or mark it as resolved.

A dead letter is resolved once it was replayed or discarded. Kafka deletes no single record, so a
marker behind it in the same partition says so: a record without key and value whose header
`chronos-resolution` is `replayed` or `discarded`, and whose header `chronos-resolved` lists the
offsets of the letters.

A rejected record is a `Letter` that is never resolved. Its producer may have used any header name,
also one of Chronos: only the last three headers are Chronos's own. Nothing is read or written here:
masters write dead letters and rejected records (`workers.step.letters`), and `admin.letters` reads
them and writes replays and markers."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from chronos.core.keys import parse_generated_id, partition_of
from chronos.core.message import (
    ACTION,
    ATTEMPT,
    CALL,
    DELAY,
    DELIVER_AT,
    DETAIL,
    DUE_AT,
    ID,
    OCCURRENCE,
    ON_CONFLICT,
    PREFIX,
    REASON,
    REPLAYED,
    RESOLUTION,
    RESOLVED,
    SCHEDULING,
    SOURCE,
    TARGET_TOPIC,
    Headers,
    Reason,
    Record,
    Rejection,
)
from chronos.core.shard.parsing import parse
from chronos.core.shard.rules import Rules
from chronos.core.size import batch_bytes

RESOLUTIONS = ("replayed", "discarded")
"""The ends of a dead letter."""

_KEPT = SCHEDULING - {ACTION, DELIVER_AT, DELAY, ON_CONFLICT, CALL}
"""Control headers on a dead letter that its replay has too."""

OWN_HEADERS = (SOURCE, REASON, DETAIL)
"""The last headers of a rejected record, which Chronos wrote."""


class Letter(Struct, frozen=True, kw_only=True, gc=False):
    """One dead letter, or one rejected record."""

    partition: int
    offset: int
    """Its position in its topic."""
    timestamp_ms: int
    """When it was written (epoch ms)."""
    id: bytes
    """The id of the message; empty if its record was too large to be passed on."""
    reason: str
    detail: str
    target: str
    """The topic to which it could not be delivered; empty if its record was too large to be passed
    on."""
    source: str
    """Position of its record in the delay topic: topic/partition/offset."""
    due_ms: int | None
    """The requested due time (epoch ms)."""
    attempt: int
    occurrence: int
    in_series: bool
    """It is an occurrence of a series, whose id the series keeps."""
    replayed: str | None
    """The source of the dead letter that the message was a replay of; None if it was not replayed
    before."""
    value_bytes: int | None
    """Size of the payload; None for a null payload."""
    record: Record | None
    """The record itself; None in a list."""


class Marker(Struct, frozen=True, gc=False):
    """A record that marks letters of its partition as resolved."""

    resolution: str
    ranges: Sequence[tuple[int, int]]
    """First and last offsets."""


class Offsets:
    """A set of offsets, kept as ranges: ten thousand letters that were replayed together take the
    memory of one."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, first: int, last: int) -> None:
        """Add the offsets from `first` to `last`."""
        assert first <= last
        start, stop = bisect_left(self._lasts, first - 1), bisect_right(self._firsts, last + 1)
        if start < stop:
            first, last = min(first, self._firsts[start]), max(last, self._lasts[stop - 1])
        self._firsts[start:stop], self._lasts[start:stop] = [first], [last]

    def __contains__(self, offset: int) -> bool:
        return self.range_of(offset) is not None

    def range_of(self, offset: int) -> tuple[int, int] | None:
        """Return first and last offset of the range that holds the offset; None if none does."""
        at = bisect_left(self._lasts, offset)
        is_in_range = at < len(self._lasts) and self._firsts[at] <= offset
        return (self._firsts[at], self._lasts[at]) if is_in_range else None

    def ranges(self) -> list[tuple[int, int]]:
        """Return first and last offset of every range, in order."""
        return list(zip(self._firsts, self._lasts, strict=True))


def read(partition: int, record: Record, whole: bool) -> Letter | Marker | None:
    """Return what a record of the dead-letter topic is; None if it is neither a letter nor a
    marker.

    `whole`: with the record itself, which may be large.
    """
    receipt = {name: value or b"" for name, value in record.headers or () if name[:8] == PREFIX}
    if RESOLUTION in receipt:
        return _marker(_text(receipt, RESOLUTION), _text(receipt, RESOLVED))
    if REASON not in receipt:
        return None
    return Letter(
        partition=partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        id=receipt.get(ID, record.key or b""),
        reason=_text(receipt, REASON),
        detail=_text(receipt, DETAIL),
        target=_text(receipt, TARGET_TOPIC),
        source=_text(receipt, SOURCE),
        due_ms=_number(receipt, DUE_AT),
        attempt=_number(receipt, ATTEMPT) or 1,
        occurrence=_number(receipt, OCCURRENCE) or 1,
        in_series=OCCURRENCE in receipt,
        replayed=_text(receipt, REPLAYED) or None,
        value_bytes=None if record.value is None else len(record.value),
        record=record if whole else None,
    )


def _marker(resolution: str, resolved: str) -> Marker | None:
    """Return the marker; None if it is not one that Chronos wrote."""
    ranges = []
    for part in resolved.split(","):
        first, _, last = part.partition("-")
        if not (
            first.isdecimal() and (last or first).isdecimal() and int(first) <= int(last or first)
        ):
            return None
        ranges.append((int(first), int(last or first)))
    return Marker(resolution, ranges) if resolution in RESOLUTIONS else None


def marker_headers(resolution: str, ranges: Iterable[tuple[int, int]]) -> dict[str, bytes | None]:
    """Return the headers of the marker for letters of one partition."""
    assert resolution in RESOLUTIONS
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    return {RESOLUTION: resolution.encode(), RESOLVED: text.encode()}


def own_headers(letter: Letter) -> Headers:
    """Return the producer's headers of a whole letter."""
    assert letter.record is not None
    return [header for header in letter.record.headers or () if header[0][:8] != PREFIX]


def control_headers(letter: Letter) -> dict[str, bytes | None]:
    """Return the headers of a whole letter that Chronos wrote."""
    assert letter.record is not None
    return {name: value for name, value in letter.record.headers or () if name[:8] == PREFIX}


def replay(
    letter: Letter, rules: Sequence[Rules], delay_topic: str, bytes_max: int, now_ms: int
) -> tuple[int, bytes | None, list[tuple[str, bytes | None]]] | Rejection:
    """Return shard, key and headers of the record that schedules a whole letter again, due at once;
    its value is the letter's.

    The message keeps its id, its target and its own headers; an expiry that is over has no effect.
    `chronos-replayed` names the source of its first dead letter, so that of several replays of one
    letter only the first is accepted. An occurrence of a series gets that name as its id, because
    the series keeps its own. `rules`: of every shard, in order. Returns the rejection if the shard
    would refuse the record."""
    assert letter.record is not None
    key, control = letter.record.key, control_headers(letter)
    first = letter.replayed or letter.source
    shard = _shard(letter, len(rules), delay_topic)
    if letter.in_series:
        first = f"{letter.source}/{letter.occurrence}"
        key = first.encode()
        shard = partition_of(key, len(rules))
    headers = [
        *own_headers(letter),
        (ACTION, b"replay"),
        (DELAY, b"0"),
        (REPLAYED, first.encode()),
        *((name, value) for name, value in control.items() if name in _KEPT),
    ]
    if key is None:
        headers.append((ID, letter.id))
    command = parse(Record(0, now_ms, key, letter.record.value, headers), rules[shard])
    if type(command) is Rejection:
        return command
    # The embedded log's own format takes up to four bytes a header more than Kafka's.
    size = batch_bytes(key, letter.record.value, headers) + 4 * len(headers)
    if size > bytes_max:
        return Rejection(Reason.TOO_LARGE, f"{size} bytes; {delay_topic} takes {bytes_max}")
    return shard, key, headers


def _shard(letter: Letter, shards: int, delay_topic: str) -> int:
    """Return the shard that knows the id: that of a generated id, or the one from which the letter
    came."""
    generated = parse_generated_id(letter.id, shards)
    if generated is not None:
        return generated[0]
    topic, _, place = letter.source.partition("/")
    shard = place.partition("/")[0]
    if topic == delay_topic and shard.isdecimal() and int(shard) < shards:
        return int(shard)
    return partition_of(letter.id, shards)


def _text(headers: Mapping[str, bytes | None], name: str) -> str:
    return (headers.get(name) or b"").decode("utf-8", "replace")


def _number(headers: Mapping[str, bytes | None], name: str) -> int | None:
    text = headers.get(name) or b""
    return int(text) if text.isdigit() else None


def read_rejected(partition: int, record: Record, whole: bool) -> Letter | None:
    """Return the rejected record; None if Chronos did not write it.

    Its id is its key, empty without one. Its target is empty if its headers name none, or several.
    """
    headers = list(record.headers or ())
    if tuple(name for name, _ in headers[-3:]) != OWN_HEADERS:
        return None
    targets = [value for name, value in headers[:-3] if name == TARGET_TOPIC]
    letter = read(partition, replace(record, headers=headers[-3:]), False)
    assert isinstance(letter, Letter), "it has a reason and no resolution"
    target = (targets[0] or b"").decode("utf-8", "replace") if len(targets) == 1 else ""
    return replace(letter, id=record.key or b"", target=target, record=record if whole else None)


def producer_headers(record: Record) -> Headers:
    """Return the headers of a record of the rejected topic as its producer wrote them."""
    return list(record.headers or ())[: -len(OWN_HEADERS)]


def source_of(message_id: bytes, shards: int, delay_topic: str) -> str | None:
    """Return the position in the delay topic, topic/partition/offset, that an id names: a generated
    id does, and a position itself is the only name of a rejected record without a key. None for any
    other id."""
    generated = parse_generated_id(message_id, shards)
    if generated is not None:
        return f"{delay_topic}/{generated[0]}/{generated[2]}"
    topic, _, place = message_id.decode("utf-8", "replace").partition("/")
    partition, _, offset = place.partition("/")
    return (
        message_id.decode()
        if topic == delay_topic and partition.isdecimal() and offset.isdecimal()
        else None
    )
