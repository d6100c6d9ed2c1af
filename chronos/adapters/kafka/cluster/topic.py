"""The topic of the cluster (`topics.cluster`, by default `chronos.cluster`): created, checked,
trimmed, and read with a reader of its own.

It has two partitions, one of heartbeats and the other records of members, and one of roles. Its
records are defined in `core.cluster.kafka.records`."""

from chronos.adapters.kafka.batches import BatchHeader
from chronos.adapters.kafka.cluster.reader import ClusterReader
from chronos.adapters.kafka.connection import Connection
from chronos.adapters.kafka.offsets import KafkaOffsets
from chronos.adapters.kafka.permissions import public_operations
from chronos.adapters.kafka.topics import KafkaTopics
from chronos.core.cluster.kafka.records import HEARTBEATS, ROLES
from chronos.errors import ConfigurationError, LogUnavailable
from chronos.ports import TopicSpec, Watermarks

PARTITIONS = (HEARTBEATS, ROLES)


class ClusterTopic:
    """The topic as an operator sees it: its id, its ends, and what is deleted of it. Any thread may
    call."""

    def __init__(self, connection: Connection, spec: TopicSpec, *, create: bool) -> None:
        """`create`: create the topic if it is missing. No request is made before `open`."""
        self.connection = connection
        self.name = spec.name
        self.id = ""
        """Topic id, as of the last `open`; it changes when the topic is deleted and created
        again."""
        self.advice: tuple[str, ...] = ()
        """Settings that are only unwise, as of the last `open`."""
        self._spec = spec
        self._create = create
        self._topics = KafkaTopics(connection, spec.name)
        self._offsets = KafkaOffsets(connection)

    def exists(self) -> bool:
        """Return whether the topic exists. Raises LogUnavailable."""
        return self._topics.describe([self.name])[self.name] is not None

    def open(self, *, create: bool | None = None) -> None:
        """Create the topic if it is missing, check it, and remember its id. Raises
        ConfigurationError, LogUnavailable."""
        info = self._topics.prepare(
            [self._spec], create=self._create if create is None else create
        )[self.name]
        if info.partitions != len(PARTITIONS):
            raise ConfigurationError(
                [
                    f"{self.name} has {info.partitions} partitions, Chronos needs "
                    f"{len(PARTITIONS)}: name another topic (topics.cluster), or delete this one "
                    "while all nodes are stopped"
                ]
            )
        self.id, self.advice = info.id, info.advice

    def is_same(self) -> bool:
        """Return whether the topic is still the one that was opened; True also if no broker
        answers."""
        try:
            info = self._topics.describe([self.name])[self.name]
        except LogUnavailable:
            return True
        return info is not None and info.id == self.id

    def reader(self) -> "ClusterReader":
        """Return a reader of all that both partitions hold. Raises LogUnavailable."""
        kept = [self.watermarks(partition) for partition in PARTITIONS]
        return ClusterReader(self.connection, self.name, kept, self.batch_header)

    def batch_header(self, partition: int, offset: int) -> BatchHeader:
        """Return the header of the batch that holds the offset. Raises LogUnavailable."""
        return self._topics.batch_header(self.name, partition, offset)

    def watermarks(self, partition: int) -> Watermarks:
        """Return the first and last offsets of a partition. Raises LogUnavailable."""
        return self._offsets.watermarks(self.name, partition)

    def stable_end(self, partition: int) -> int:
        """Return the last stable offset of a partition. Raises LogUnavailable."""
        return self._offsets.stable_end(self.name, partition)

    def trim(self, partition: int, offset: int) -> None:
        """Delete the records of a partition before the offset. Raises LogUnavailable."""
        if offset > self.watermarks(partition).start:
            self._topics.delete_records(self.name, partition, offset)

    def denied(self) -> list[str]:
        """Return which of Read and Write an ACL denies."""
        return self._topics.denied([self.name]).get(self.name, [])

    def public(self) -> list[str]:
        """Return which of Read and Write every client may do. Raises LogUnavailable."""
        return public_operations(self.connection, self.name)

    def close(self) -> None:
        """Release the clients."""
        self._offsets.close()
