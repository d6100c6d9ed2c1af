"""Error codes of Kafka and librdkafka, by what they mean for Chronos."""

from confluent_kafka import KafkaError

FORBIDDEN_CODES = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
"""An ACL is missing."""

REFUSED_CODES = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE})
"""Connections that cannot be made, whatever their number: a wrong password, an untrusted certificate, an unknown host."""

MISSING_CODES = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC})
"""The topic or partition does not exist; the client reports the same while no broker answers (measured)."""

NOT_DESCRIBED_CODES = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION, KafkaError.TOPIC_AUTHORIZATION_FAILED}
)
"""Answers to a description that mean: Chronos can use no topic of this name."""

NOT_CREATED_CODES = FORBIDDEN_CODES | {
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_PARTITIONS,
}
"""The topic cannot be created because of its name, its settings or a missing permission."""

UNREADABLE_CODES = frozenset({KafkaError._BAD_COMPRESSION})
"""The next batch cannot be decompressed: it is damaged, or in zstd and larger than `receive.message.max.bytes` (measured; with
the other codecs the client takes the memory). Reported for the batch's first offset, with every fetch."""

LEADER_MOVED_CODES = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,  # a new leader does not know yet how much of its log is committed
        KafkaError._DESTROY_BROKER,  # the client has just learned that the broker it asked is gone
    }
)
"""A partition's leader starts or moves: ask again."""

HARMLESS_READ_CODES = LEADER_MOVED_CODES | {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._WAIT_CACHE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
}
"""Errors after which the client fetches again from the same position by itself: a broker or a connection is gone."""

COORDINATOR_MOVED_CODES = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
"""A group's coordinator starts or moves: ask again."""

LOST_PRODUCER_CODES = frozenset({KafkaError._FENCED, KafkaError._TIMED_OUT, KafkaError._STATE})
"""The producer cannot be used again."""

CONSEQUENCE_CODES = frozenset({KafkaError._INCONSISTENT, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""Errors of messages and of transactions that failed because another message did."""

ABANDONED_CODES = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._MSG_TIMED_OUT})
"""Records that the client no longer tries to send: the log may hold them."""

POISON_CODES = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._INVALID_ARG,
    }
)
"""Errors caused by a message or its topic, not by a broker that is slow or gone."""

TOO_LARGE_CODES = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE}
)
"""A batch is larger than its topic, or the broker, takes."""
