"""What the jobs ask of the brokers, beside Spark's own reading. An adapter of the service answers."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class TopicBrokers(Protocol):
    """Topics and the ends of their partitions."""

    def names(self) -> list[str]:
        """All topics, except those of Kafka itself."""

    def describe(self, topics: Sequence[str]) -> Mapping[str, Any]:
        """`TopicInfo` by name; None for a topic that does not exist."""

    def cluster_id(self) -> str:
        """The id that Kafka gave the cluster."""

    def watermarks(self, topic: str, partition: int) -> Any:
        """`Watermarks` of a partition."""
