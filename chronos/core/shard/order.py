"""The partition of an id, the hop of a record that came to another one, and what is remembered of
the records of one id: their order if they came through different partitions, the calls that were
executed, and when all of it is forgotten.

Records that came through one partition keep the order of that partition, which is the order in
which they arrive. The order of two partitions is known to 0.5 s only (CLOCK_TOLERANCE_MS), by the
first timestamps of the records:

    a message and a cancel      at most 0.5 s apart, the cancel wins; else the later one
    two messages                at most 0.5 s apart, the one that arrives last counts as later; else the later one
    another action              acts on the message that is there, unless it is more than 0.5 s older

Two cancels of an id are enough to decide about a message from any partition: the latest, and the
latest one from any other partition than that.

An id belongs to the partition in which Java producers place it as a key, a generated id to the
shard it names. A record that arrives elsewhere is forwarded, unless the configuration rejects it:
written on to its own partition with its source and first timestamp in one header. The shard of that
partition removes the header; a first timestamp more than 0.5 s ahead of the record's own does not
count. Nothing is forwarded twice."""  # noqa: E501

import re
from collections.abc import Sequence
from hashlib import blake2b
from struct import unpack

from msgspec.structs import replace

from chronos.core.clock import CLOCK_TOLERANCE_MS
from chronos.core.keys import MURMUR2_MULTIPLIER, MURMUR2_SEED, parse_generated_id, partition_of
from chronos.core.message import (
    FORWARDED,
    Command,
    Entry,
    IdOrder,
    Misplaced,
    Reason,
    Record,
    Rejection,
)
from chronos.core.shard.codec import IdState
from chronos.core.shard.rules import Rules
from chronos.core.values import shown

Cancel = tuple[int, int]
"""First timestamp (epoch ms) and partition of a cancel."""


CALL_BYTES = 8
"""Bytes of the token of a call."""

CALLS_MAX = 4
"""Tokens that are remembered of an id."""


def call_token(call: bytes) -> bytes:
    """Return the token of a call, by which its repetition is recognized."""
    return blake2b(call, digest_size=CALL_BYTES).digest()


def is_repeated(id_state: IdState, token: bytes | None) -> bool:
    """Return whether the call is one of the last ones of the id that were executed."""
    calls = None if token is None or id_state.order is None else id_state.order.calls
    return calls is not None and token in [
        calls[at : at + CALL_BYTES] for at in range(0, len(calls), CALL_BYTES)
    ]


def with_call(order: IdOrder | None, token: bytes | None) -> IdOrder | None:
    """Return what is remembered of an id once the call is executed."""
    if token is None:
        return order
    known = IdOrder() if order is None else order
    kept = (known.calls or b"")[-(CALLS_MAX - 1) * CALL_BYTES :]
    return replace(known, calls=kept + token)


def is_forgotten(id_state: IdState, horizon_ms: int) -> bool:
    """Return whether an id was settled, and its cancels noted, before the horizon: it counts as
    absent, on disk or not.

    A pending one has no such time, and one that is settled in the current step has none yet.
    """
    return 0 < id_state.settled_ms < horizon_ms and kept_from_ms(id_state) < horizon_ms


def kept_from_ms(id_state: IdState) -> int:
    """Return the time (epoch ms) from which a settled id state is kept for the horizon: that of its
    end, or of a later cancel."""
    last_ms = max([first_ms for first_ms, _ in cancels_of(id_state)], default=0)
    return last_ms if last_ms > id_state.settled_ms + CLOCK_TOLERANCE_MS else id_state.settled_ms


def cancels_of(id_state: IdState) -> Sequence[Cancel]:
    """Return the remembered cancels of an id."""
    return () if id_state.order is None else id_state.order.cancels


def with_cancel(id_state: IdState, first_ms: int, partition: int) -> IdState:
    """Return the state that remembers this cancel too, as far as it is one of the two that
    matter."""
    latest: dict[int, int] = {}
    for each_ms, each in (*cancels_of(id_state), (first_ms, partition)):
        latest[each] = max(each_ms, latest.get(each, 0))
    two = sorted(
        ((each_ms, each) for each, each_ms in latest.items()),
        key=lambda cancel: (-cancel[0], cancel[1]),
    )[:2]
    order = IdOrder() if id_state.order is None else id_state.order
    return replace(id_state, order=replace(order, cancels=tuple(two)))


def succeeding(entry: Entry, id_state: IdState | None) -> Entry:
    """Return the entry of a message with the cancels and calls of its id that came before it."""
    order = succeeding_order(entry.order, id_state)
    return entry if order is entry.order else replace(entry, order=order)


def succeeding_order(own: IdOrder | None, id_state: IdState | None) -> IdOrder | None:
    """Return what is remembered of an id once a record with the order `own` took it: the cancels
    and calls that came before it stay."""
    before = None if id_state is None else id_state.order
    if before is None or not (before.cancels or before.calls):
        return own
    source = None if own is None else own.source
    return replace(before, source=source)


def _partition(id_state: IdState, own: int) -> int:
    """Return the partition that the message of the id came to first."""
    order = id_state.order
    return own if order is None or order.source is None else order.source


def overtaken(id_state: IdState, first_ms: int, partition: int, own: int) -> Rejection | None:
    """Return the rejection of a message that arrives after a later record of its id.

    `partition`: the one that the message came to first; `own`: that of the id.
    """
    if any(
        each_ms >= first_ms - CLOCK_TOLERANCE_MS and each != partition
        for each_ms, each in cancels_of(id_state)
    ):
        return Rejection(
            Reason.TOO_LATE,
            "a cancel of this id came to another partition after this message was written, or "
            f"less than {CLOCK_TOLERANCE_MS} ms before: use replace to cancel and schedule at once",
        )
    is_later = id_state.first_ms > first_ms + CLOCK_TOLERANCE_MS
    if is_later and _partition(id_state, own) != partition:
        return Rejection(Reason.TOO_LATE, "a later record of this id came first")
    return None


def precedes(first_ms: int, partition: int, id_state: IdState, own: int) -> bool:
    """Return whether an action that arrives after the pending message of its id was written before
    it."""
    return (
        first_ms < id_state.first_ms - CLOCK_TOLERANCE_MS and _partition(id_state, own) != partition
    )


TOGETHER_MIN = 8
"""Keys of one length from which hashing them together is faster than one by one."""

_NUMBERS = re.compile(rb"(?:0|[1-9][0-9]{0,18});(0|[1-9][0-9]{0,14})")
"""Offset and first timestamp of a hop."""


def partitions_of(keys: Sequence[bytes], partitions: int) -> list[int]:
    """Return `keys.partition_of` of each key, in order, at a fifth of its cost for thousands of
    keys."""
    lengths = {*map(len, keys)}
    if len(lengths) == 1:
        return _partitions_together(keys, lengths.pop(), partitions)
    by_length: dict[int, list[int]] = {length: [] for length in lengths}
    for at, key in enumerate(keys):
        by_length[len(key)].append(at)
    computed = [0] * len(keys)
    for length, places in by_length.items():
        together = _partitions_together([keys[at] for at in places], length, partitions)
        for at, partition in zip(places, together, strict=True):
            computed[at] = partition
    return computed


def _partitions_together(keys: Sequence[bytes], length: int, partitions: int) -> list[int]:
    """Return the partitions of keys that all have this length."""
    if len(keys) < TOGETHER_MIN or length == 0:
        return [partition_of(key, partitions) for key in keys]
    hashed = _positive_hashes(keys, length)
    count = len(keys)
    return [
        each % partitions for each in unpack(f"<{count}Q", hashed.to_bytes(8 * count, "little"))
    ]


def are_in(partition: int, keys: Sequence[bytes], partitions: int) -> bool:
    """Return whether this is the partition of every key, sooner than with `partitions_of`."""
    lengths = {*map(len, keys)}
    length, is_power = max(lengths), partitions & partitions - 1 == 0
    if len(lengths) > 1 or len(keys) < TOGETHER_MIN or length == 0 or not is_power:
        return partitions_of(keys, partitions).count(partition) == len(keys)
    low = _positive_hashes(keys, length) & _repeated(partitions - 1, len(keys))
    return low == _repeated(partition, len(keys))


def _repeated(number: int, count: int) -> int:
    """Return an integer with this number of 32 bits for each key, 64 bits apart."""
    return int.from_bytes(number.to_bytes(8, "little") * count, "little")


def _positive_hashes(keys: Sequence[bytes], length: int) -> int:
    """Return `murmur2` of keys that all have this length, without the sign as Kafka drops it, in
    one integer.

    It holds a number of 32 bits for each key, 64 bits apart: so a product does not reach the next
    one, and what a shift moves in from the next one is outside the mask."""
    count, padding = len(keys), bytes(-length % 4)
    data = padding.join(keys) + padding
    row = length + len(padding)
    mask = _repeated(0xFFFFFFFF, count)
    hashed = _repeated(MURMUR2_SEED ^ length, count)
    for start in range(0, row, 4):
        words = bytearray(8 * count)
        for byte in range(min(4, length - start)):
            words[byte::8] = data[start + byte :: row]
        word = int.from_bytes(words, "little")
        if start + 4 <= length:
            word = word * MURMUR2_MULTIPLIER & mask
            word = ((word ^ word >> 24) & mask) * MURMUR2_MULTIPLIER
            hashed = (hashed * MURMUR2_MULTIPLIER ^ word) & mask
        else:
            hashed = (hashed ^ word) * MURMUR2_MULTIPLIER & mask
    hashed = ((hashed ^ hashed >> 13) & mask) * MURMUR2_MULTIPLIER & mask
    return (hashed ^ hashed >> 15) & _repeated(0x7FFFFFFF, count)


def check_places(
    records: Sequence[Record], commands: list[Command], ids: Sequence[bytes | None], rules: Rules
) -> bool:
    """Replace each command whose id belongs to another shard by a `Misplaced`, or by the rejection;
    return True if there are any.

    `ids`: those of the commands; at least one has an id. The parser has checked generated ids
    already."""
    named: Sequence[bytes] = ids if all(ids) else [each for each in ids if each]  # type: ignore[assignment]
    if are_in(rules.shard, named, rules.shards):
        return False
    homes = iter(partitions_of(named, rules.shards))
    decided: dict[int, Rejection] = {}
    for at, message_id in enumerate(ids):
        if not message_id:
            continue
        home = next(homes)
        if home == rules.shard or (
            message_id[0] <= ord("9") and parse_generated_id(message_id, rules.shards) is not None
        ):
            continue
        if _was_forwarded(records[at]):
            commands[at] = misplaced(home, rules, was_forwarded=True)
        elif home in decided:
            commands[at] = decided[home]
        else:
            commands[at] = decided[home] = misplaced(home, rules)
    return True


def misplaced(home: int, rules: Rules, *, was_forwarded: bool = False) -> Rejection:
    """Return the decision about a record whose id belongs to the shard `home`."""
    place = f"this id belongs to shard {home}, the record came to {rules.shard}"
    if was_forwarded:
        return Rejection(Reason.WRONG_SHARD, f"{place} and was forwarded before")
    if rules.misplaced == "forward":
        return Misplaced(Reason.FORWARDED, place, partition=home)
    return Rejection(
        Reason.WRONG_SHARD,
        f"{place}: the producer's partitioner differs (librdkafka: partitioner=murmur2_random)",
    )


def _was_forwarded(record: Record) -> bool:
    return record.headers is not None and FORWARDED in [name for name, _ in record.headers]


def hop(source_prefix: bytes, record: Record) -> bytes:
    """Return the value of the header with which a record is forwarded. `source_prefix`:
    `<topic>/<partition>/`."""
    return b"%b%d;%d" % (source_prefix, record.offset, record.timestamp_ms)


def first_shard(record: Record, shard: int) -> int:
    """Return the shard that a record of `shard` came to first: the one in its hop, which the parser
    has checked, or its own."""
    for name, raw in record.headers or ():
        if name == FORWARDED:
            return int((raw or b"").rpartition(b"/")[0].rpartition(b"/")[2])
    return shard


def hop_of(raw: bytes | None, timestamp_ms: int, rules: Rules) -> tuple[int, int] | Rejection:
    """Return the partition and the first timestamp (epoch ms) that a record of `timestamp_ms` has
    by its hop, or its rejection.

    Only Chronos writes the header, and what can be told here is that it names another partition of
    the delay topic. A first timestamp that is further ahead than two clocks may differ counts as
    the record's own time: the two brokers' clocks disagree, which is no fault of the record. The
    audit compares the source with the decisions of that partition."""
    source, _, rest = (raw or b"").rpartition(b"/")
    found = _NUMBERS.fullmatch(rest)
    if found is not None and rules.may_forward(source):
        first_ms, partition = int(found[1]), int(source.rpartition(b"/")[2])
        is_believed = first_ms <= timestamp_ms + CLOCK_TOLERANCE_MS
        return partition, first_ms if is_believed else timestamp_ms
    return Rejection(Reason.BAD_VALUE, f"{FORWARDED}: Chronos did not write {shown(raw)}")


def ahead_ms(record: Record) -> int:
    """Return by how much the first timestamp of a forwarded record, whose hop the parser has
    checked, is ahead of its own (ms)."""
    for name, raw in record.headers or ():
        if name == FORWARDED:
            return int((raw or b"").rpartition(b";")[2]) - record.timestamp_ms
    return 0
