"""The topics that Chronos owns: their partitions, and the settings that they are created with.

These are specifications: the log creates the topics and checks them (`ports.TopicLog`). Kafka's log
insists on `message.timestamp.type` and `cleanup.policy`, and only advises the other settings. The
only check here is that the progress topic accepts the largest progress record of a step."""

from typing import TYPE_CHECKING

from chronos.config import Config
from chronos.core.shard.progress import progress_bytes_max
from chronos.core.size import STEP_MESSAGES
from chronos.errors import ConfigurationError
from chronos.ports import TopicInfo, TopicSpec

if TYPE_CHECKING:
    from chronos.adapters.kafka.log import KafkaLog as KafkaLog


HEADROOM_BYTES = 256 * 1024
"""Bytes by which a rejected or dead-letter record may exceed its delay record: reason, source,
receipt."""

PROGRESS_BYTES = 4 * 1024 * 1024
"""Largest record of the progress topic: that of a step is a tenth of it at most."""

CLUSTER_BYTES = 4 * 1024 * 1024
"""Largest record that the cluster topic accepts: the report of a node with some thousands of
shards."""


def own_topics(config: Config) -> list[TopicSpec]:
    """Return the four topics that Chronos owns, with the settings they must have."""
    topics = config.topics
    common = _durable(config)
    # The log is the only other copy of the pending messages, so Kafka must not delete anything by
    # itself.
    kept = {
        **common,
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
    }
    # Every message that fits the delay topic must fit here, and stays until an operator has looked
    # at it.
    letters = {
        **common,
        "retention.ms": "-1",
        "max.message.bytes": str(topics.message_bytes_max + HEADROOM_BYTES),
    }
    shards = config.shards
    return [
        TopicSpec(
            name=topics.delay,
            partitions=shards,
            per_shard=True,
            settings={
                **kept,
                "max.message.bytes": str(topics.message_bytes_max),
                "compression.type": topics.compression,
            },
        ),
        TopicSpec(
            name=topics.progress,
            partitions=shards,
            per_shard=True,
            settings={**kept, "max.message.bytes": str(PROGRESS_BYTES)},
        ),
        TopicSpec(name=topics.rejected, partitions=shards, settings=letters),
        TopicSpec(name=topics.dead_letter, partitions=shards, settings=letters),
    ]


def cluster_topic(config: Config) -> TopicSpec:
    """Return the topic of `coordinator.kind: kafka`: heartbeats and roles. The controller trims it;
    nothing else deletes from it."""
    return TopicSpec(
        name=config.topics.cluster,
        partitions=2,
        settings={
            **_durable(config),
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "cleanup.policy": "delete",
            "max.message.bytes": str(CLUSTER_BYTES),
            "compression.type": config.topics.compression,
        },
    )


def _durable(config: Config) -> dict[str, str]:
    """Return the settings that every topic of Chronos has."""
    topics = config.topics
    common = {
        "replication.factor": str(topics.replication_factor),
        "unclean.leader.election.enable": "false",
    }
    if topics.min_insync_replicas is not None:
        common["min.insync.replicas"] = str(topics.min_insync_replicas)
    return common


def check_progress_fits(config: Config, progress: TopicInfo) -> None:
    """Raise ConfigurationError if the progress topic refuses the largest progress record of one
    step: no retry would help."""
    name = config.topics.progress
    needed = progress_bytes_max(STEP_MESSAGES)
    if progress.bytes_max >= needed:
        return
    raise ConfigurationError(
        [
            f"{name} has max.message.bytes={progress.bytes_max}, Chronos needs {needed} for the "
            f"progress record of one step: kafka-configs --alter --topic {name} --add-config "
            f"max.message.bytes={needed}"
        ]
    )
