"""The watch worker: looks whether the topics that hold the state are still those the stores were built from.

A client reads on in silence from a topic that was deleted and created again, at an offset that means another record
there; and nobody reads a partition that was added. Keeps its part of law 1: neither goes on for longer than two looks.
"""

from collections.abc import Mapping, Sequence

from chronos.errors import ConfigurationError, LogMismatch, Retry
from chronos.ports import TopicInfo, TopicLog, TopicSpec

LOOK_EVERY_MS = 1_000
"""Time between two looks: three questions to a broker, about 5 ms."""

MISSING_LOOKS = 2
"""Looks in a row that must miss a topic, or find it otherwise: a broker that has just started may know less than the others."""


class TopicWatch:
    """Looks at the delay and the progress topic while the node runs."""

    def __init__(self, log: TopicLog, topics: Sequence[TopicSpec], found: Mapping[str, TopicInfo]) -> None:
        self._log = log
        self._topics = topics
        self._ids = {spec.name: found[spec.name].id for spec in topics}
        self._missed = 0

    def step(self, now_ms: int) -> int:
        """One look; when to look again. Raises LogMismatch or ConfigurationError when the topics are others now."""
        try:
            infos = self._log.describe([spec.name for spec in self._topics])
            missing = [name for name, info in infos.items() if info is None]
            if not missing:
                self._compare(self._log.prepare(self._topics, create=False))
                self._missed = 0
                return now_ms + LOOK_EVERY_MS
        except Retry:
            return now_ms + LOOK_EVERY_MS  # the shards meet the same and say so
        except ConfigurationError:
            # It looks for itself, and the broker it asks may know less.
            self._missed += 1
            if self._missed >= MISSING_LOOKS:
                raise
            return now_ms + LOOK_EVERY_MS
        self._missed += 1
        if self._missed >= MISSING_LOOKS:
            raise LogMismatch(
                f"{' and '.join(missing)} is not there any more: it was deleted while Chronos used it, and what was"
                " pending is gone from the log. To start anew, remove the data directory and both the delay and the"
                " progress topic."
            )
        return now_ms + LOOK_EVERY_MS

    def _compare(self, infos: Mapping[str, TopicInfo]) -> None:
        for name, known in self._ids.items():
            if infos[name].id != known:
                raise LogMismatch(
                    f"{name} was deleted and created again while Chronos used it (its id was {known}, now it is"
                    f" {infos[name].id}), and what was pending is gone from the log. To start anew, remove the data"
                    " directory and both the delay and the progress topic."
                )
