"""Forwarded records: those whose id belongs to another partition, to which they are written in the transaction of their step.

Keeps its part of law 8: a partition that takes no records at the moment pauses only pulling, and a record that has become too
large for the delay topic is rejected.
"""

from collections.abc import Iterator, Sequence

from chronos.core.message import FORWARDED, Headers, Record
from chronos.core.placement import hop
from chronos.core.size import batch_bytes, batch_bytes_max
from chronos.core.step import Staged
from chronos.ports import Log, Outgoing, TopicInfo
from chronos.workers.letters import Refusal
from chronos.workers.targets import DESCRIBE_EVERY_MS

HOP_BYTES_MAX = 400
"""Most bytes of the header that names a hop: a topic has at most 249, its numbers and the header's name at most 80."""


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
        """Return each record unchanged but for the header that names its hop, for the partition of its id."""
        topic, headers = self.topic, self._headers
        for record, partition in forwards:
            yield topic, record.key, record.value, headers(record), partition

    def _headers(self, record: Record) -> Headers:
        return [*(record.headers or ()), (FORWARDED, hop(self._source_prefix, record))]

    def refusal(self, staged: Staged, now_ms: int) -> Refusal | None:
        """Return why a partition that records go to takes none, by its description; None if all take them.

        Raises LogUnavailable.
        """
        info = self._describe(now_ms)
        if info is None:
            return Refusal(why=f"{self.topic} does not exist", passing=False)
        closed = sorted({partition for _, partition in staged.forwards} & info.closed)
        if closed:
            self.forget()
            return Refusal(why=f"{self.topic}/{closed[0]} has no leader with enough in-sync replicas", passing=True)
        return None

    def reject_too_large(self, staged: Staged, bytes_max: int, now_ms: int) -> None:
        """Turn the records that the delay topic would not take with their hop, or of more than `bytes_max`, into rejections."""
        info = self._describe(now_ms)
        assert info is not None, "a topic that is missing is not written to"
        limit = min(bytes_max, info.bytes_max)
        too_large = {}
        for record, _ in staged.forwards:
            if batch_bytes_max(record.key, record.value, record.headers or ()) + HOP_BYTES_MAX > limit:
                size = batch_bytes(record.key, record.value, self._headers(record))
                if size > limit:
                    too_large[record.offset] = f"{size} bytes with its hop; {self.topic} takes {limit}"
        if too_large:
            staged.reject_forwards(too_large)

    def forget(self) -> None:
        """Drop the description of the topic: after a failure it is not trusted."""
        self._info = None

    def _describe(self, now_ms: int) -> TopicInfo | None:
        if self._info is None or not 0 <= now_ms - self._described_ms < DESCRIBE_EVERY_MS:
            self._info, self._described_ms = self._log.describe([self.topic])[self.topic], now_ms
        return self._info
