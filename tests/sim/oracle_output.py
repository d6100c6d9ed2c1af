"""What one transaction wrote, compared record by record with what the model expects: keys, values,
headers and receipts."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from chronos.core.keys import partition_of
from chronos.core.message import Record
from tests.sim.broker import DEAD_LETTER, DELAY, REJECTED
from tests.sim.oracle_values import Message, Written, wrong


class Output:
    """The records of a transaction of one shard; each is taken once."""

    def __init__(self, shard: int, written: Sequence[Written]) -> None:
        self.shard = shard
        self.left = list(written)
        """Records that nothing asked for so far."""

    def source(self, offset: int) -> bytes:
        """Return the `chronos-source` of a delay record."""
        return b"%b/%d/%d" % (DELAY.encode(), self.shard, offset)

    def delivery(self, message: Message, partitions: int) -> None:
        """Compare the delivery of a message to a target with so many partitions."""
        command = message.command
        what = f"the delivered {message.id!r}"
        found = self._take(command.target, message, what)
        _compare_headers(what, command.headers, self._receipt(message), found.record)
        if found.record.key != command.target_key or found.record.value != command.value:
            raise wrong(f"{what} has key {found.record.key!r} and value {found.record.value!r}")
        if command.target_key is not None and found.partition != partition_of(
            command.target_key, partitions
        ):
            raise wrong(f"{what} is in partition {found.partition} of {partitions}")

    def letter(self, message: Message, reason: str) -> None:
        """Compare the dead letter of a message."""
        command = message.command
        what = f"the dead letter {message.id!r} ({reason})"
        found = self._take(DEAD_LETTER, message, what)
        receipt: dict[str, bytes | None] = dict(self._receipt(message))
        receipt["chronos-attempt"] = b"%d" % message.attempt
        if command.rhythm is not None:
            receipt["chronos-occurrence"] = b"%d" % message.occurrence
        receipt["chronos-reason"] = reason.encode()
        receipt["chronos-target-topic"] = command.target.encode()
        if command.target_key is not None:
            receipt["chronos-target-key"] = command.target_key
        if message.expires_ms is not None:
            receipt["chronos-expire-at"] = b"%d" % message.expires_ms
        if command.attempts_max:
            receipt["chronos-attempts"] = b"%d" % command.attempts_max
        receipt["chronos-detail"] = _detail(what, found.record)
        _compare_headers(what, command.headers, receipt, found.record)
        if (
            found.record.key != (command.id if command.is_keyed else None)
            or found.record.value != command.value
        ):
            raise wrong(f"{what} has key {found.record.key!r} and value {found.record.value!r}")

    def forwards(self, queues: Mapping[int, list[Record]]) -> list[tuple[Record, Written]]:
        """Compare what was written on with the queues of the other partitions, and take it from
        these.

        It is the beginning of each queue, in order; the records are unchanged but for the hop.
        """
        taken = []
        for found in [found for found in self.left if found.topic == DELAY]:
            self.left.remove(found)
            queue = queues.get(found.partition)
            if not queue:
                raise wrong(
                    "a record that is not to be forwarded is written to partition "
                    f"{found.partition}: {found}"
                )
            record = queue.pop(0)
            what = f"the forwarded {self.shard}/{record.offset}"
            hop = b"%b;%d" % (self.source(record.offset), record.timestamp_ms)
            _compare_headers(what, record.headers or (), {"chronos-forwarded": hop}, found.record)
            if (found.record.key, found.record.value) != (record.key, record.value):
                raise wrong(f"{what} was changed: {found}")
            taken.append((record, found))
        return taken

    def refusals(self, queue: list[tuple[Record, str]], held: Container[int]) -> None:
        """Compare what was rejected with the beginning of the queue of refused records, and take it
        from there.

        `held`: offsets of records that waited; their details may be cut or missing.
        """
        for found in [found for found in self.left if found.topic == REJECTED]:
            self.left.remove(found)
            headers = dict(found.record.headers or ())
            if not queue:
                raise wrong(f"a record that was not refused is rejected: {found}")
            record, reason = queue.pop(0)
            what = f"the rejected {self.shard}/{record.offset}"
            receipt = {
                "chronos-reason": reason.encode(),
                "chronos-source": self.source(record.offset),
            }
            if record.offset not in held or "chronos-detail" in headers:
                receipt["chronos-detail"] = _detail(what, found.record)
            own = [pair for pair in record.headers or () if not _stays_behind(pair[0])]
            _compare_headers(what, own, receipt, found.record)
            if (found.record.key, found.record.value) != (record.key, record.value):
                raise wrong(f"{what} was changed: {found}")

    def end(self) -> None:
        """Nothing else may have been written."""
        if self.left:
            raise wrong(f"nothing asked for this record: {self.left[0]}")

    def _take(self, topic: str, message: Message, what: str) -> Written:
        """Remove and return the record that was written for a message."""
        source, occurrence = self.source(message.offset), max(1, message.occurrence)
        for found in self.left:
            headers = dict(found.record.headers or ())
            if found.topic != topic or headers.get("chronos-source") != source:
                continue
            if int(headers.get("chronos-occurrence") or 1) == occurrence:
                self.left.remove(found)
                return found
        raise wrong(f"{what} is not in {topic}")

    def _receipt(self, message: Message) -> dict[str, bytes]:
        receipt = {
            "chronos-id": message.id,
            "chronos-due-at": b"%d" % message.due_ms,
            "chronos-source": self.source(message.offset),
        }
        if message.occurrence > 1:
            receipt["chronos-occurrence"] = b"%d" % message.occurrence
        if message.attempt > 1:
            receipt["chronos-attempt"] = b"%d" % message.attempt
        if message.command.replayed is not None:
            receipt["chronos-replayed"] = message.command.replayed
        return receipt


def _stays_behind(name: str) -> bool:
    """Return whether a header is not on what is rejected: its hop, and the name of its call."""
    folded = name.lower().replace("_", "-")
    return folded in ("chronos-forwarded", "chronos-call")


def _detail(what: str, record: Record) -> bytes:
    detail = dict(record.headers or ()).get("chronos-detail")
    if not detail:
        raise wrong(f"{what} has no detail")
    return detail


def _compare_headers(
    what: str,
    own: Sequence[tuple[str, bytes | None]],
    receipt: Mapping[str, bytes | None],
    record: Record,
) -> None:
    """The producer's own headers come first, unchanged and in order; then the receipt, each header
    once."""
    headers = list(record.headers or ())
    count = len(own)
    if (
        headers[:count] != list(own)
        or dict(headers[count:]) != receipt
        or len(headers) != count + len(receipt)
    ):
        raise wrong(f"{what} has the headers {headers}, not {[*own, *receipt.items()]}")
