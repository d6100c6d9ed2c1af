"""The conditions of a restore: the archived service has stopped, and the new one holds nothing.

A restore is a backfill of mode `pending`; its plan and its sending are in `job`. Law: nothing is
restored while the archived service may still deliver it, and nothing into a service that may have
accepted an id before."""

from collections.abc import Sequence

from chronos.core.timefmt import format_duration, format_time
from chronos.errors import ArchiveFailed, LogUnavailable
from chronos.spark.runs import ArchiveBrokers, TopicBrokers

QUIET_MS = 90_000
"""Age in ms of the newest progress record from which on a service counts as stopped: an idle master
writes one each minute."""


def newest_ms(brokers: ArchiveBrokers, topic: str) -> int | None:
    """The newest timestamp in a topic, epoch ms by the brokers' clocks; None: the topic does not
    exist, or is empty. LogUnavailable if the brokers cannot tell."""
    info = brokers.describe([topic])[topic]
    if info is None:
        return None
    if info.leaderless:
        raise LogUnavailable(f"no broker leads {topic}/{min(info.leaderless)}")
    ends = {shard: brokers.watermarks(topic, shard).high for shard in range(info.partitions)}
    return max(
        (
            int(brokers.batch_header(topic, shard, end - 1).timestamp_ms)
            for shard, end in ends.items()
            if end > brokers.watermarks(topic, shard).start
        ),
        default=None,
    )


def check_stopped(topic: str, newest: int | None, now_ms: int) -> None:
    """Raise ArchiveFailed if the newest record of the progress topic is younger than QUIET_MS."""
    if newest is not None and now_ms - newest < QUIET_MS:
        raise ArchiveFailed(
            f"the archived service may still run: its progress topic {topic} has a record of "
            f"{format_time(newest)}. Stop its nodes, and repeat the command once that record is "
            f"{format_duration(QUIET_MS)} old; or accept it with --old-cluster-is-gone"
        )


def check_empty(brokers: TopicBrokers, topics: Sequence[str]) -> None:
    """Raise ArchiveFailed if one of the topics to restore to has, or had, a record."""
    for topic, info in brokers.describe(topics).items():
        if info is None:
            continue
        for shard in range(info.partitions):
            if brokers.watermarks(topic, shard).high:
                raise ArchiveFailed(
                    f"{topic} is not empty: give a --config with new topics (topics.delay, "
                    "topics.progress), and start its service only after the restore"
                )
