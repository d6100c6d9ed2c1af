"""Settings of the Kafka clients, and the limits in time and size that the adapter keeps.

A setting that differs from librdkafka's default carries its reason; most were measured. Names and defaults are listed in
librdkafka's CONFIGURATION.md.
"""

from collections.abc import Mapping
from typing import Any

REQUEST_TIMEOUT_S = 5.0
"""How long a request to the brokers may take unless `log.kafka.request_timeout` says otherwise: offsets, topics, settings."""

ANSWER_MARGIN_S = 2.0
"""How much longer to wait for the result of a request: the client gives up earlier, or never."""

LEADER_POLL_S = 0.02
"""Pause before a request is repeated to a partition that has no leader, or whose leader does not know it yet."""

TOPIC_APPEARS_S = 1.0
"""How long a topic that one broker has described may be unknown to another."""

CREATE_TIMEOUT_S = 30.0
"""How long the creation of topics may take."""

INIT_TIMEOUT_S = 8.0
"""How long `init_transactions` may take: it waits for the last transaction of an earlier master.
Shorter than the time a stopping node waits for a shard; tried again afterwards."""

RECORD_BYTES_MAX = 256 * 1024 * 1024
"""Largest record that the clients handle. The limit of a topic is configured at the topic and looked up there."""

RECEIVE_BYTES = 100_000_000
"""librdkafka's `receive.message.max.bytes`: the largest response, and the largest batch that it makes of one in zstd."""

RECEIVE_BYTES_MAX = 2_147_483_647
"""The greatest value that librdkafka accepts for it."""

BATCH_BYTES = 1_000_000
"""librdkafka's `batch.size`. A topic with a smaller `max.message.bytes` is flushed in smaller portions."""

COMMON: Mapping[str, Any] = {
    "client.id": "chronos",
    "log.connection.close": False,
    # When a broker fails the client asks once for the leaders of its partitions, too early for the answer to have changed, and
    # not again for this long. With the default of 5 min a transaction waits for the failed broker until it times out.
    "topic.metadata.refresh.interval.ms": 1_000,
    # The clients of a frozen broker connect again and again, until more connections wait for it than it keeps (50). What the others
    # send is dropped, and TCP repeats it after 1, 3, 7 and 15 s from the first time on: a client that begins anew after 5 s finds
    # the broker within 2 s after it wakes.
    "socket.connection.setup.timeout.ms": 5_000,
    "reconnect.backoff.max.ms": 1_000,
}
"""Settings of every client."""

RECONNECTING: Mapping[str, Any] = {
    "socket.connection.setup.timeout.ms": 2_500,
    "reconnect.backoff.max.ms": 500,
}
"""Settings of the clients of the coordinator: masters wait for it, and it is only two connections of each node."""

CONSUMER: Mapping[str, Any] = {
    "group.id": "chronos-unused",  # required by the client, never joined: partitions are assigned by hand
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",  # the default jumps to the end without an error
    "enable.partition.eof": True,  # reports the position after transaction markers
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 2,  # the default of 1 s stalls a fast consumer
    "queued.max.messages.kbytes": 8_192,  # the default of 64 MB would be the largest part of the process's memory
    "queued.min.messages": 20_000,
    "fetch.message.max.bytes": 4_194_304,
}
"""Settings of a reader."""

VALIDATING_CONSUMER: Mapping[str, Any] = {
    "isolation.level": "read_uncommitted",  # a partition answers with a record or with its end
    "fetch.wait.max.ms": 1,
    "fetch.message.max.bytes": 1_024,
    "queued.min.messages": 1,
}
"""Settings, over those of a reader, of a consumer that compares offsets with the leader epochs of the log."""

OFFSETS_CONSUMER: Mapping[str, Any] = {
    "group.id": "chronos-unused",  # required by the client, never joined
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    # An idle one is never polled, so events must not pile up in it while all brokers are gone. With connections made on
    # demand only, it tries some twenty times a second and keeps an event for each attempt (measured).
    "enable.sparse.connections": False,
    "fetch.wait.max.ms": 1,  # one fetch may be under way before the pause, and the next request waits for it
}
"""Settings of a consumer that only asks for offsets."""

ADMIN: Mapping[str, Any] = {
    # With connections made on demand only, a request to a broker that is gone reconnects as fast as the machine can: a
    # whole core, until the client learns of another broker (measured).
    "enable.sparse.connections": False,
}
"""Settings of the admin client."""

PRODUCER: Mapping[str, Any] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",  # as Java producers place keys
    "topic.metadata.refresh.interval.ms": 2_000,  # it asks for all known targets, which may be many
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
    # While a request to a partition is under way, an idempotent client sends no other one to that partition, and its thread polls
    # without a pause as long as messages for it are ready. So a step makes few requests, of half a full step at most, and flush()
    # ends the time in which they fill: 12 us of processor time a delivery instead of 18 with four shards, 7 instead of 11 with one,
    # compared with batches of 1,000 and 5 ms (measured).
    "linger.ms": 100,
    "batch.num.messages": 2_500,
}
"""Settings, over those of every producer, of the transactional producer of a shard."""
