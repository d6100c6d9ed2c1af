"""The topic watch: checks that the delay and progress topics are still those the stores were built from.

A client continues without an error in a topic that was deleted and created again, although the same offset is another
record there; and no shard reads a partition that was added. Keeps its part of law 1: two checks detect either change.
"""

from collections.abc import Mapping, Sequence

from chronos.errors import ConfigurationError, LogMismatch, Retry
from chronos.ports import TopicInfo, TopicLog, TopicSpec

CHECK_EVERY_MS = 1_000
"""Time between two checks: three requests to a broker, about 5 ms."""

FAILED_CHECKS = 2
"""Checks in a row that must miss a topic, or find it changed: a broker that has just started may know less than the others."""


class TopicWatch:
    """Checks the delay and the progress topic while the node runs."""

    def __init__(self, log: TopicLog, topics: Sequence[TopicSpec], found: Mapping[str, TopicInfo]) -> None:
        self._log = log
        self._topics = topics
        self._ids = {spec.name: found[spec.name].id for spec in topics}
        self._failed = 0
        """Failed checks in a row."""

    def step(self, now_ms: int) -> int:
        """Check once; return when to be called again. Raises LogMismatch or ConfigurationError when the topics have changed."""
        try:
            infos = self._log.describe([spec.name for spec in self._topics])
            missing = [name for name, info in infos.items() if info is None]
            if not missing:
                self._compare(self._log.prepare(self._topics, create=False))
                self._failed = 0
                return now_ms + CHECK_EVERY_MS
        except Retry:
            return now_ms + CHECK_EVERY_MS  # the shards pause for the same reason and report it
        except ConfigurationError:
            # `prepare` makes requests of its own, and the broker that answers them may know less.
            self._failed += 1
            if self._failed >= FAILED_CHECKS:
                raise
            return now_ms + CHECK_EVERY_MS
        self._failed += 1
        if self._failed >= FAILED_CHECKS:
            raise LogMismatch(
                f"{' and '.join(missing)} is not there any more: it was deleted while Chronos used it, and its"
                " pending messages are gone from the log. To start anew, remove the data directory and both the delay and the"
                " progress topic."
            )
        return now_ms + CHECK_EVERY_MS

    def _compare(self, infos: Mapping[str, TopicInfo]) -> None:
        for name, known in self._ids.items():
            if infos[name].id != known:
                raise LogMismatch(
                    f"{name} was deleted and created again while Chronos used it (its id was {known}, now it is"
                    f" {infos[name].id}), and its pending messages are gone from the log. To start anew, remove the data"
                    " directory and both the delay and the progress topic."
                )
