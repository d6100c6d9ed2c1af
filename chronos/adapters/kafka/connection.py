"""The connection to one Kafka cluster: settings of its clients, limits in time and size, and error
codes by what they mean for Chronos.

Most settings that differ from librdkafka's defaults carry a reason; some were measured. Names and
defaults are listed in librdkafka's CONFIGURATION.md. A setting of the operator
(`log.kafka.properties`) wins over the one here, except over PATIENT_CONSUMER."""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException

from chronos.adapters.kafka.client_log import ClientLog
from chronos.errors import LogUnavailable

log = structlog.get_logger("chronos.kafka")

FORBIDDEN_CODES = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
)
"""An ACL is missing."""

REFUSED_CODES = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE})
"""Connections that cannot be made, whatever their number: a wrong password, an untrusted
certificate, an unknown host."""

MISSING_CODES = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC}
)
"""The topic or partition does not exist; the client reports the same while no broker answers
(measured)."""

NOT_DESCRIBED_CODES = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
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
"""The next batch cannot be decompressed: it is damaged, or in zstd and larger than
`receive.message.max.bytes` (measured; with the other codecs the client takes the memory). Reported
for the batch's first offset, with every fetch."""

LEADER_MOVED_CODES = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        # a new leader does not know yet how much of its log is committed
        KafkaError.OFFSET_NOT_AVAILABLE,
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
"""Errors after which the client fetches again from the same position by itself: a broker or a
connection is gone."""

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

FORGOTTEN_CODES = frozenset(
    {KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.UNKNOWN_PRODUCER_ID}
)
"""The brokers have forgotten the transactional id, and with it the fence of this producer. The
client takes a new producer id with the next abort and goes on (KAFKA-17822): another producer may
have had the transactional id meanwhile."""

CONSEQUENCE_CODES = frozenset(
    {KafkaError._INCONSISTENT, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
)
"""Errors of messages and of transactions that failed because another message did."""

ABANDONED_CODES = frozenset(
    {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._MSG_TIMED_OUT}
)
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

REQUEST_TIMEOUT_S = 5.0
"""How long a request to the brokers may take unless `log.kafka.request_timeout` says otherwise:
offsets, topics, settings."""

ANSWER_MARGIN_S = 2.0
"""How much longer to wait for the result of a request: the client gives up earlier, or never."""

LEADER_POLL_S = 0.02
"""Pause before a request is repeated to a partition that has no leader, or whose leader does not
know it yet."""

TOPIC_APPEARS_S = 1.0
"""How long a topic that one broker has described may be unknown to another."""

CREATE_PARTITION_S = 0.1
"""How much longer than another request the creation of topics may take for each partition: a broker
that creates three times 512 on a slow disk takes some 50 s."""

INIT_TIMEOUT_S = 8.0
"""How long `init_transactions` may take: it waits for the last transaction of an earlier master.
Shorter than the time a stopping node waits for a shard; tried again afterwards."""

RECORD_BYTES_MAX = 256 * 1024 * 1024
"""Largest record that the clients handle. The limit of a topic is configured at the topic and
looked up there."""

RECEIVE_BYTES = 100_000_000
"""librdkafka's `receive.message.max.bytes`: the largest response, and the largest batch that it
makes of one in zstd."""

RECEIVE_BYTES_MAX = 2_147_483_647
"""The greatest value that librdkafka accepts for it."""

BATCH_BYTES = 1_000_000
"""librdkafka's `batch.size`. A topic with a smaller `max.message.bytes` is flushed in smaller
portions."""

METADATA = "topic.metadata.refresh.interval.ms"
"""librdkafka's time between two questions for the leaders of all partitions of its topics."""

METADATA_SHARD_MS = 20
"""The least such time for each shard of the cluster. With a fixed time the answers grow with the
square of the shards: three nodes with 256 of them kept a broker so busy that none became ready, and
with this one were ready after some 100 s (two cores for all, measured)."""

COMMON: Mapping[str, Any] = {
    "client.id": "chronos",
    "log.connection.close": False,
    # When a broker fails the client asks once for the leaders of its partitions, too early for the
    # answer to have changed, and not again for this long. With the default of 5 min a transaction
    # waits for the failed broker until it times out.
    METADATA: 1_000,
    # The clients of a frozen broker connect again and again, until more connections wait for it
    # than it keeps (50). What the others send is dropped, and TCP repeats it after 1, 3, 7 and 15 s
    # from the first time on. A client that begins anew soon after one of these finds the broker
    # within 2 s after it wakes.
    "socket.connection.setup.timeout.ms": 3_500,
    "reconnect.backoff.max.ms": 1_000,
}
"""Settings of every client."""

RECONNECTING: Mapping[str, Any] = {
    "socket.connection.setup.timeout.ms": 2_500,
    "reconnect.backoff.max.ms": 500,
}
"""Settings of the clients of the coordinator: masters wait for it, and it is only two connections
of each node."""

CONSUMER: Mapping[str, Any] = {
    # required by the client, never joined: partitions are assigned by hand
    "group.id": "chronos-unused",
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",  # the default jumps to the end without an error
    "enable.partition.eof": True,  # reports the position after transaction markers
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 2,  # the default of 1 s stalls a fast consumer
    # the default of 64 MB would be the largest part of the process's memory
    "queued.max.messages.kbytes": 8_192,
    "queued.min.messages": 20_000,
    "fetch.message.max.bytes": 4_194_304,
}
"""Settings of a reader."""

PATIENT_CONSUMER: Mapping[str, Any] = {"fetch.wait.max.ms": 500}
"""Settings, over those of a reader, of one that waits for most of its time. The client tells of an
end behind transaction markers only once a fetch has found nothing more: hence the 10 ms of the
others, which cost the brokers a hundred fetches a second for each partition."""

VALIDATING_CONSUMER: Mapping[str, Any] = {
    "isolation.level": "read_uncommitted",  # a partition answers with a record or with its end
    "fetch.wait.max.ms": 1,
    "fetch.message.max.bytes": 1_024,
    "queued.min.messages": 1,
}
"""Settings, over those of a reader, of a consumer that compares offsets with the leader epochs of
the log."""

OFFSETS_CONSUMER: Mapping[str, Any] = {
    "group.id": "chronos-unused",  # required by the client, never joined
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    # An idle one is never polled, so events must not pile up in it while all brokers are gone. With
    # connections made on demand only, it tries some twenty times a second and keeps an event for
    # each attempt (measured).
    "enable.sparse.connections": False,
    # one fetch may be under way before the pause, and the next request waits for it
    "fetch.wait.max.ms": 1,
}
"""Settings of a consumer that only asks for offsets."""

ADMIN: Mapping[str, Any] = {
    # With connections made on demand only, a request to a broker that is gone reconnects as fast as
    # the machine can: a whole core, until the client learns of another broker (measured).
    "enable.sparse.connections": False,
}
"""Settings of the admin client."""

PRODUCER: Mapping[str, Any] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",  # as Java producers place keys
    METADATA: 2_000,  # it asks for all known targets, which may be many
    "allow.auto.create.topics": False,  # a typo must not create a topic that swallows messages
    "linger.ms": 5,
    "batch.size": BATCH_BYTES,
    "batch.num.messages": 1_000,  # the broker works on the first batches while the next are made
    "message.max.bytes": RECORD_BYTES_MAX,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_048_576,
}
"""Settings of every producer."""

WRITER: Mapping[str, Any] = {
    # While a request to a partition is under way, an idempotent client sends no other one to that
    # partition, and its thread polls without a pause as long as messages for it are ready. So a
    # step makes few requests, of half a full step at most, and flush() ends the time in which they
    # fill: 12 us of processor time a delivery instead of 18 with four shards, 7 instead of 11 with
    # one, compared with batches of 1,000 and 5 ms (measured).
    "linger.ms": 100,
    "batch.num.messages": 2_500,
}
"""Settings, over those of every producer, of the transactional producer of a shard."""

REFUSED_S = 30.0
"""How long a refused connection is named as the cause of other errors: the client connects again
within 10 s."""

ATTEMPT = re.compile(r"/bootstrap(?=:)| \(after \d+ms in state \w+\)")
"""Parts of an error of the client that differ from one attempt to the next."""


class Connection:
    """A cluster's address and the operator's client properties."""

    def __init__(
        self,
        bootstrap_servers: str,
        properties: Mapping[str, Any],
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        shards: int = 1,
    ) -> None:
        """`shards`: of the cluster; each has clients of its own, which ask for all partitions of
        their topics."""
        self.bootstrap_servers = bootstrap_servers
        self.request_timeout_s = request_timeout_s
        """How long a request to the brokers may take."""
        self.answer_s = request_timeout_s + ANSWER_MARGIN_S
        """Longest wait for the result of a request."""
        self._common = {**COMMON, "bootstrap.servers": bootstrap_servers, "logger": ClientLog()}
        self._metadata_ms = METADATA_SHARD_MS * shards
        self.properties = dict(properties)
        """The operator's properties."""
        self._refused: tuple[float, str] | None = None
        """Time and text of the last connection that was refused."""
        self.poll: Callable[[], object] = lambda: None
        """Has the client that reports refused connections call `refused` for those since the last
        call."""

    def settings(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """All settings of one client: the common ones, its `own`, and over them the operator's."""
        settings = {**self._common, **own}
        settings[METADATA] = max(settings[METADATA], self._metadata_ms)
        return {**settings, **self.properties}

    def asking(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a client that only asks for topics or offsets.

        A frozen broker keeps its connections, and by default the client waits a minute for its
        answer before it asks another broker for the leaders (measured)."""
        timeout_ms = int(self.request_timeout_s * 1_000)
        return {**self._common, **own, "socket.timeout.ms": timeout_ms, **self.properties}

    def unavailable(self, doing: str, error: KafkaException) -> LogUnavailable:
        """Return the translation of an error of the client; `doing`: the operation that failed."""
        cause, brokers = error.args[0], self.bootstrap_servers
        if cause.code() in MISSING_CODES:
            # The client reports the same while no broker answers (measured): only the topic's id
            # proves that it is gone.
            advice = self.advice(f"is a broker at {brokers} up, or was it deleted?")
            return LogUnavailable(f"{doing}: it is not there ({cause.name()}); {advice}")
        advice = self.advice(f"is a broker at {brokers} up, and the address right?")
        return LogUnavailable(f"{doing}: {cause.str()} ({cause.name()}); {advice}")

    def unanswered(self, doing: str) -> LogUnavailable:
        """The error of a request that got no answer."""
        return LogUnavailable(
            f"{doing}: {self.advice(f'no broker at {self.bootstrap_servers} answered in time')}"
        )

    def refused(self, error: KafkaError) -> None:
        """Callback of a client for errors of its connections: keep one that explains all other
        errors."""
        if error.code() in REFUSED_CODES:
            self._refused = time.monotonic(), ATTEMPT.sub("", error.str())

    def advice(self, usual: str) -> str:
        """Return what to do about an error: `usual`, unless connections were refused a moment ago,
        which explains it."""
        self.poll()
        if self._refused is None or time.monotonic() - self._refused[0] > REFUSED_S:
            return usual
        return (
            f"a connection to {self.bootstrap_servers} was refused: {self._refused[1]}; check "
            "log.kafka.properties"
        )
