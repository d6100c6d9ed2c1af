"""Topics through the admin client, a part of `ports.TopicLog`: creating, checking and describing
them, deleting their first records, and what Kafka allows to this client."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    ConfigResource,
    NewTopic,
)
from msgspec.structs import replace

from chronos.adapters.kafka.batches import BatchHeader, batch_header
from chronos.adapters.kafka.connection import (
    ADMIN,
    ANSWER_MARGIN_S,
    BATCH_BYTES,
    CREATE_PARTITION_S,
    FORBIDDEN_CODES,
    LEADER_POLL_S,
    NOT_CREATED_CODES,
    NOT_DESCRIBED_CODES,
    RECORD_BYTES_MAX,
    TOPIC_APPEARS_S,
    Connection,
)
from chronos.errors import ConfigurationError, LogUnavailable
from chronos.ports import TopicInfo, TopicSpec

log = structlog.get_logger("chronos.kafka")

REQUIRED_SETTINGS = frozenset({"message.timestamp.type", "cleanup.policy"})
"""Settings of Chronos's own topics that its laws depend on; the operator decides about the
others."""

RENEW_S = 10.0
"""Time without an answer after which the client is replaced. One that had waited for a frozen
broker found none for a minute, while all others of the node had found it again (measured, once in
forty freezes)."""

FENCE_KEPT_MS = 600_000
"""Least `transactional.id.expiration.ms` of a broker that is not named: far longer than a master
goes without a commit. Kafka's default is 7 days."""


class KafkaTopics:
    """The topics of a cluster. Any thread may call."""

    def __init__(self, connection: Connection, progress_topic: str) -> None:
        self._connection = connection
        self._progress_topic = progress_topic
        self._admin = self._new_admin()
        self._silent_s: float | None = None
        """When a ping was first not answered, since the last answer or since the client was made.
        """
        # No producer has this callback: with it, a fatal error would be raised by whatever call
        # polls next.
        connection.poll = lambda: self._admin.poll(0)
        self.small_batch_topics: dict[str, int] = {}
        """Topics that take smaller batches than the client makes, with their limits in bytes, as
        last described."""
        self.bytes_max: dict[str, int] = {}
        """Largest batch of each prepared topic, in bytes: its readers must accept a response of
        that size."""
        self._hidden: set[str] = set()
        """Topics for which the last description was refused because a permission is missing; they
        may exist or not."""
        self._unchecked: set[str] = set()
        """Topics of Chronos whose settings it may not read; each was logged once."""
        self._brokers: set[int] = set()
        """Those that lead a partition of a described topic."""
        self._warned: set[str] = set()
        """Topics with one replica that were logged."""
        self._forgetful: list[str] | None = None
        """Brokers that forget transactional ids too soon, for people; None: not all
        have answered."""

    def _new_admin(self) -> AdminClient:
        return AdminClient(self._connection.asking({**ADMIN, "error_cb": self._connection.refused}))

    def prepare(self, topics: Sequence[TopicSpec], *, create: bool) -> dict[str, TopicInfo]:
        """Create missing topics and check all."""
        names = [spec.name for spec in topics]
        infos = self.describe(names)
        missing = [spec for spec in topics if infos[spec.name] is None]
        if missing and not create:
            listed = ", ".join(spec.name for spec in missing)
            raise ConfigurationError(
                [f"topics.create is off and these topics are missing: {listed}"]
            )
        if missing:
            self._create(missing)
            deadline = time.monotonic() + self._create_s(missing)
            while None in (infos := self.describe(names)).values():
                if time.monotonic() > deadline:
                    raise LogUnavailable("the topics just created do not appear")
                time.sleep(LEADER_POLL_S)
        problems, advice = [], {}
        for spec in topics:
            wrong, unwise = self._check(spec, infos[spec.name])
            problems += wrong
            advice[spec.name] = tuple(unwise)
        if problems:
            raise ConfigurationError(problems)
        # An admin client that knows no topic asks every 10 s only which brokers there are, and a
        # request to a controller that is gone waits its whole time (measured: 5 s, for every third
        # client of three brokers). Now it knows one.
        self.ping(self._connection.request_timeout_s)
        found = {
            name: replace(info, advice=advice[name])
            for name, info in infos.items()
            if info is not None
        }
        self.bytes_max.update((name, info.bytes_max) for name, info in found.items())
        return found

    def _create_s(self, specs: Sequence[TopicSpec]) -> float:
        """Return how long the creation of these topics may take (s)."""
        partitions = sum(max(1, spec.partitions) for spec in specs)
        return self._connection.request_timeout_s + CREATE_PARTITION_S * partitions

    def _create(self, specs: Sequence[TopicSpec], *, validate_only: bool = False) -> None:
        if not specs:
            return
        limit_s = self._create_s(specs)
        wanted = [
            NewTopic(
                spec.name,
                num_partitions=spec.partitions,
                replication_factor=int(spec.settings.get("replication.factor", "-1")),
                config={
                    name: value
                    for name, value in spec.settings.items()
                    if name != "replication.factor"
                },
            )
            for spec in specs
        ]
        for name, future in self._admin.create_topics(
            wanted,
            operation_timeout=limit_s,
            request_timeout=limit_s + ANSWER_MARGIN_S,
            validate_only=validate_only,
        ).items():
            try:
                future.result(limit_s + 2 * ANSWER_MARGIN_S)
            except TimeoutError:
                raise self._connection.unanswered(f"creating the topic {name}") from None
            except KafkaException as error:
                code = error.args[0].code()
                if code in NOT_CREATED_CODES:
                    raise ConfigurationError(
                        [f"the topic {name} cannot be created: {error.args[0].str()}"]
                    ) from error
                if code != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise self._connection.unavailable(
                        f"creating the topic {name}", error
                    ) from error
                if name in self._hidden:
                    raise ConfigurationError(
                        [f"the topic {name} exists, but Kafka does not let Chronos describe it"]
                    ) from error

    def _check(self, spec: TopicSpec, info: TopicInfo | None) -> tuple[list[str], list[str]]:
        """Return the problems that make the topic unusable, and the settings that are only
        unwise."""
        assert info is not None
        problems, advice = [], []
        if spec.per_shard and info.partitions != spec.partitions:
            problems.append(
                f"{spec.name} has {info.partitions} partitions where `shards` says "
                f"{spec.partitions}. If it was created with {info.partitions}, set `shards` to "
                "that. If partitions were added, ids have moved to other shards, and this topic "
                "cannot be used any more: give Chronos a second set of topics, with a data "
                "directory of its own"
            )
        actual = self._settings([spec.name])[spec.name]
        if not actual and spec.name not in self._unchecked:
            self._unchecked.add(spec.name)
            log.warning(
                "topic settings not checked",
                topic=spec.name,
                needs="DESCRIBE_CONFIGS",
                wanted=dict(spec.settings),
            )
        for name, value in spec.settings.items():
            if actual.get(name, value) == value:
                continue
            change = f"kafka-configs --alter --topic {spec.name} --add-config {name}={value}"
            if name in REQUIRED_SETTINGS:
                problems.append(
                    f"{spec.name} has {name}={actual[name]}, Chronos needs {value}: {change}"
                )
            else:
                advice.append(
                    f"{spec.name} has {name}={actual[name]}, {value} is advised: {change}"
                )
        if spec.name == self._progress_topic:
            if self._forgetful is None:
                self._forgetful = self._forgetful_brokers()
            advice += self._forgetful or []
        return problems, advice

    def _forgetful_brokers(self) -> list[str] | None:
        """Return which brokers forget a transactional id, and with it the fence of a master, before
        FENCE_KEPT_MS, for people; empty if Chronos may not read their settings.

        None if one did not answer, which must not keep a node from its work."""
        name = "transactional.id.expiration.ms"
        texts = []
        try:
            asked = {
                broker: _broker_settings(self._admin, self._connection, broker)
                for broker in sorted(self._listed_brokers())
            }
            for broker, settings in asked.items():
                kept_ms = int(settings.result(self._connection.answer_s)[name].value)
                if kept_ms < FENCE_KEPT_MS:
                    texts.append(
                        f"broker {broker} has {name}={kept_ms}, {FENCE_KEPT_MS} is the least that "
                        "is advised: a master that commits nothing for so long loses its fence, "
                        "and its leadership begins anew (docs/operations/texts.md)"
                    )
        except (TimeoutError, LogUnavailable):
            return None
        except KafkaException as error:
            return [] if error.args[0].code() in FORBIDDEN_CODES else None
        return texts

    def _listed_brokers(self) -> dict[int, Any]:
        """The client's `BrokerMetadata` of every broker that runs, by its id."""
        try:
            return self._admin.list_topics(
                self._progress_topic, timeout=self._connection.request_timeout_s
            ).brokers
        except KafkaException as error:
            raise self._connection.unavailable("listing the brokers", error) from error

    def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo | None]:
        """Describe the topics in two requests, one for partitions and one for settings; neither
        creates a topic."""
        if not topics:
            return {}
        self._connection.poll()  # takes the client's events, which would be kept otherwise
        infos: dict[str, TopicInfo | None] = dict.fromkeys(topics)
        found = self._descriptions(topics)
        settings = self._settings(list(found))
        self._hidden.difference_update(found)
        for name, description in found.items():
            info = infos[name] = _info(description, settings[name])
            if info.bytes_max < BATCH_BYTES:
                self.small_batch_topics[name] = info.bytes_max
            else:
                self.small_batch_topics.pop(name, None)
        self._warn_of_single_replicas(infos)
        return infos

    def _warn_of_single_replicas(self, infos: Mapping[str, TopicInfo | None]) -> None:
        """Log each topic with one replica once, before a broker fails; unless there is one broker
        only, as far as its topics tell."""
        found = {name: info for name, info in infos.items() if info is not None}
        self._brokers.update(
            broker for info in found.values() for broker in info.leaders if broker >= 0
        )
        for name, info in found.items():
            if info.replicas == 1 and name not in self._warned and len(self._brokers) > 1:
                self._warned.add(name)
                log.warning("topic has one replica", topic=name)

    def _descriptions(self, topics: Sequence[str]) -> dict[str, Any]:
        """The client's `TopicDescription` of every topic that exists and may be seen."""
        try:
            futures = self._admin.describe_topics(
                TopicCollection(list(topics)),
                include_authorized_operations=True,
                request_timeout=self._connection.request_timeout_s,
            )
        except (KafkaException, ValueError) as error:
            raise LogUnavailable(f"describing {', '.join(topics)}: {error}") from error
        found = {}
        for name, future in futures.items():
            try:
                found[name] = future.result(self._connection.answer_s)
            except TimeoutError:
                raise self._connection.unanswered(f"describing {name}") from None
            except KafkaException as error:
                code = error.args[0].code()
                if code not in NOT_DESCRIBED_CODES:
                    raise self._connection.unavailable(
                        f"describing the topic {name}", error
                    ) from error
                if code in FORBIDDEN_CODES:
                    self._hidden.add(name)
        return found

    def _settings(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the settings by topic; empty for a topic whose settings Chronos may not read."""
        settings: dict[str, dict[str, str]] = {name: {} for name in topics}
        deadline = time.monotonic() + TOPIC_APPEARS_S
        left = list(topics)
        while left:
            left = self._read_settings(left, settings, retries=time.monotonic() < deadline)
            if left:
                time.sleep(LEADER_POLL_S)
        return settings

    def _read_settings(
        self, topics: Sequence[str], settings: dict[str, dict[str, str]], *, retries: bool
    ) -> list[str]:
        """One request; returns the topics that this broker does not know yet, if they are to be
        asked for again."""
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
        unknown = []
        for resource, future in self._admin.describe_configs(
            resources, request_timeout=self._connection.request_timeout_s
        ).items():
            try:
                settings[resource.name] = {
                    name: entry.value
                    for name, entry in future.result(self._connection.answer_s).items()
                }
            except TimeoutError:
                raise self._connection.unanswered(f"describing {resource.name}") from None
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.UNKNOWN_TOPIC_OR_PART and retries:
                    # Another broker has just described it: a topic created a moment ago is not
                    # known to all at once.
                    unknown.append(resource.name)
                elif code not in FORBIDDEN_CODES:
                    raise self._connection.unavailable(
                        f"reading the settings of {resource.name}", error
                    ) from error
        return unknown

    def names(self) -> list[str]:
        """All topics but those of Kafka itself (`__consumer_offsets`, ...)."""
        try:
            listed = self._admin.list_topics(timeout=self._connection.request_timeout_s).topics
        except KafkaException as error:
            raise self._connection.unavailable("listing the topics", error) from error
        return sorted(name for name in listed if not name.startswith("__"))

    def brokers(self) -> list[tuple[str, int]]:
        """Return host and port of every broker, as they advertise themselves."""
        listed = self._listed_brokers()
        return [(str(broker.host), broker.port) for _, broker in sorted(listed.items())]

    def creation_problems(self, specs: Sequence[TopicSpec]) -> list[str]:
        """Return why the topics cannot be created; creates nothing."""
        try:
            self._create(specs, validate_only=True)
        except ConfigurationError as error:
            return error.problems
        return []

    def denied(self, topics: Sequence[str]) -> dict[str, list[str]]:
        """Return, by topic, which of Read and Write an ACL denies; topics without such an operation
        are left out."""
        wanted = {"Read": AclOperation.READ, "Write": AclOperation.WRITE}
        found = {}
        for name, description in self._descriptions(topics).items() if topics else ():
            allowed = description.authorized_operations
            denied = [
                word for word, operation in wanted.items() if allowed and operation not in allowed
            ]
            if denied:
                found[name] = denied
        return found

    def cluster_id(self) -> str:
        """The id that Kafka gave the cluster when its storage was formatted."""
        try:
            timeout_s = self._connection.request_timeout_s
            return str(self._admin.list_topics(self._progress_topic, timeout=timeout_s).cluster_id)
        except KafkaException as error:
            raise self._connection.unavailable("asking for the id of the cluster", error) from error

    def batch_header(self, topic: str, partition: int, offset: int) -> BatchHeader:
        """Return the header of the batch that holds the offset, asked of the partition's leader.
        Raises LogUnavailable."""
        connection = self._connection
        return batch_header(
            self.leader(topic, partition),
            connection.properties,
            topic,
            partition,
            offset,
            connection.request_timeout_s,
        )

    def leader(self, topic: str, partition: int) -> tuple[str, int]:
        """Return host and port of the partition's leader."""
        try:
            metadata = self._admin.list_topics(topic, timeout=self._connection.request_timeout_s)
            broker = metadata.brokers[metadata.topics[topic].partitions[partition].leader]
        except KafkaException as error:
            raise self._connection.unavailable(
                f"looking for the leader of {topic}/{partition}", error
            ) from error
        except KeyError:
            raise LogUnavailable(f"{topic}/{partition} has no leader") from None
        return str(broker.host), broker.port

    def ping(self, timeout_s: float) -> bool:
        """Return whether a broker answers within the time. Asks for the progress topic only, not
        for all there are, and through another client after RENEW_S without an answer."""
        now_s = time.monotonic()
        try:
            if self._silent_s is not None and now_s - self._silent_s > RENEW_S:
                self._admin, self._silent_s = self._new_admin(), None
            self._admin.list_topics(self._progress_topic, timeout=timeout_s)
        except KafkaException:
            self._silent_s = now_s if self._silent_s is None else self._silent_s
            return False
        self._silent_s = None
        return True

    def delete_records(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records before the offset; the broker answers once its replicas know."""
        part = TopicPartition(topic, partition, offset)
        try:
            for future in self._admin.delete_records(
                [part], request_timeout=self._connection.request_timeout_s
            ).values():
                future.result(self._connection.answer_s)
        except TimeoutError:
            raise self._connection.unanswered(f"trimming {topic}/{partition}") from None
        except KafkaException as error:
            raise self._connection.unavailable(f"trimming {topic}/{partition}", error) from error


def _info(description: Any, settings: dict[str, str]) -> TopicInfo:
    partitions, allowed = (
        sorted(description.partitions, key=lambda part: part.id),
        description.authorized_operations,
    )
    leaders = tuple(-1 if part.leader is None else part.leader.id for part in partitions)
    # A partition with fewer in-sync replicas takes no records from a producer that waits for all of
    # them, as Chronos does; a partition that has fewer replicas at all needs only those.
    in_sync_min = int(settings.get("min.insync.replicas", 1))
    return TopicInfo(
        id=str(description.topic_id),
        partitions=len(partitions),
        leaderless=frozenset(
            part.id for part, leader in zip(partitions, leaders, strict=True) if leader < 0
        ),
        bytes_max=int(settings.get("max.message.bytes", RECORD_BYTES_MAX)),
        compacted="compact" in settings.get("cleanup.policy", ""),
        writable=not allowed or AclOperation.WRITE in allowed,
        replicas=min((len(part.replicas) for part in partitions), default=None),
        leaders=leaders,
        short=frozenset(
            part.id for part in partitions if len(part.isr) < min(in_sync_min, len(part.replicas))
        ),
    )


def _broker_settings(admin: AdminClient, connection: Connection, broker: int) -> Any:
    """Ask a broker for its settings; the future of the client's `ConfigEntry` by name."""
    resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
    return admin.describe_configs([resource], request_timeout=connection.request_timeout_s)[
        resource
    ]
