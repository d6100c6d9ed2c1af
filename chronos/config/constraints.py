"""The constraints between settings: values that are valid one by one and wrong together; and some
checks of a single value, such as a property that Chronos sets itself, the path in ZooKeeper, or the
length of the voters' secret.

One function for each subject; its texts name the keys and, where it is not obvious, the remedy. The
other checks of the type, form and bounds of a single value are in `model`, `cluster` and
`values`."""

import os.path
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from chronos.config.catalogue import PROPERTIES
from chronos.config.model import Config
from chronos.config.values import is_loopback
from chronos.core.shard.progress import progress_bytes_max
from chronos.core.size import RESPONSE_OVERHEAD, STEP_MESSAGES, step_bytes
from chronos.core.timefmt import format_duration

SECRET_LEAST: Final = 16

_RESERVED_PROPERTIES: Final = {
    "bootstrap.servers": "is given by log.kafka.bootstrap_servers",
    "metadata.broker.list": "is given by log.kafka.bootstrap_servers",
    "transaction.timeout.ms": "is given by delivery.transaction_timeout",
    "allow.auto.create.topics": "is given by delivery.create_topics",
    "transactional.id": (
        "belongs to Chronos: it names progress topic and shard, and fencing rests on it"
    ),
    "enable.idempotence": "is set by Chronos: exactly-once delivery depends on it",
    "acks": "is set by Chronos: exactly-once delivery depends on it",
    "request.required.acks": "is set by Chronos: exactly-once delivery depends on it",
    "isolation.level": "is set by Chronos: exactly-once delivery depends on it",
    "group.id": (
        "belongs to Chronos: shards are assigned by the coordinator, not by a consumer group"
    ),
    "enable.auto.commit": "belongs to Chronos: positions live in the store",
    "enable.auto.offset.store": "belongs to Chronos: positions live in the store",
    "auto.offset.reset": "belongs to Chronos: a lost position must be an error, not a jump",
}


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """A conflict between settings: a text about the first of the keys that can correct it."""

    paths: tuple[str, ...]
    text: str


def conflicts(config: Config) -> Iterator[Conflict]:
    """All conflicts, in the order of the keys."""
    yield from _cluster_is_complete(config)
    yield from _followers_suffice(config)
    yield from _zookeeper_is_consistent(config)
    yield from _kafka_has_brokers(config)
    yield from _topics_differ(config)
    yield from _replicas_suffice(config)
    yield from _retries_grow(config)
    yield from _something_is_allowed(config)
    yield from _checkpoints_survive_the_disk(config)
    yield from _tls_is_complete(config)
    yield from _jwt_is_complete(config)
    yield from _untrusted_clients_are_kept_out(config)
    yield from _audit_is_complete(config)
    yield from _properties_agree(config)


def _cluster_is_complete(config: Config) -> Iterator[Conflict]:
    kind = config.coordinator.kind
    if kind == "zookeeper" and config.coordinator.zookeeper.hosts is None:
        yield Conflict(
            paths=("coordinator.zookeeper.hosts", "coordinator.kind"),
            text=(
                f"is missing, and coordinator.kind is {kind}; name its servers, for example "
                "localhost:2181"
            ),
        )
    if kind == "raft":
        yield from _voters_are_complete(config)
    if kind != "standalone" and config.log.kind != "kafka":
        yield Conflict(
            paths=("coordinator.kind", "log.kind"),
            text=(
                f"{kind} is for several nodes, and log.kind is {config.log.kind}, which is inside "
                "one; use log.kind: kafka, or coordinator.kind: standalone"
            ),
        )


def _voters_are_complete(config: Config) -> Iterator[Conflict]:
    secret = config.coordinator.secret
    own = dict(peer.split("=", 1) for peer in config.coordinator.raft.peers).get(config.node.id, "")
    if own and int(own.rpartition(":")[2]) == config.admin.port:
        yield Conflict(
            paths=("coordinator.raft.peers", "admin.port"),
            text=(
                f"the port of this node, {config.admin.port}, is also admin.port; a voter needs a "
                "port of its own"
            ),
        )
    if not config.coordinator.raft.peers:
        yield Conflict(
            paths=("coordinator.raft.peers", "coordinator.kind"),
            text="is missing, and coordinator.kind is raft; name the nodes that vote, for example"
            " [a=host-a:7701, b=host-b:7701, c=host-c:7701]",
        )
    if secret is None or len(secret) < SECRET_LEAST:
        yield Conflict(
            paths=("coordinator.secret", "coordinator.kind"),
            text=(
                f"is {'missing' if secret is None else 'too short'}, and coordinator.kind is "
                f"raft; give all nodes the same one of at least {SECRET_LEAST} characters"
            ),
        )


def _followers_suffice(config: Config) -> Iterator[Conflict]:
    if config.replication.mode != "sync":
        return
    needed, nodes = config.replication.min_in_sync, config.coordinator.replication
    if config.coordinator.kind == "standalone":
        yield Conflict(
            paths=("replication.mode", "coordinator.kind"),
            text=(
                "sync needs followers, and a standalone node has none; use coordinator.kind: "
                "kafka, zookeeper or raft, or replication.mode: async"
            ),
        )
    elif nodes is not None and nodes <= needed:
        yield Conflict(
            paths=("replication.min_in_sync", "coordinator.replication"),
            text=(
                f"{needed} followers and a master are more than the {nodes} nodes that hold a "
                "shard (coordinator.replication); lower the one or raise the other"
            ),
        )


def _zookeeper_is_consistent(config: Config) -> Iterator[Conflict]:
    settings = config.coordinator.zookeeper
    section = "coordinator.zookeeper"
    if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", settings.path):
        yield Conflict(
            paths=(f"{section}.path",),
            text=f"{settings.path} is not a path; write it like /chronos",
        )
    if settings.authentication != "none":
        for name in ("username", "password"):
            if getattr(settings, name) is None:
                yield Conflict(
                    paths=(f"{section}.{name}", f"{section}.authentication"),
                    text=f"is missing, and {section}.authentication is {settings.authentication}",
                )
    elif settings.acl == "creator":
        yield Conflict(
            paths=(f"{section}.acl", f"{section}.authentication"),
            text=(
                "creator gives access only to those who authenticate, and "
                f"{section}.authentication is none; use digest or sasl, or acl: open"
            ),
        )
    if (settings.certfile is None) != (settings.keyfile is None):
        missing, there = (
            ("keyfile", "certfile") if settings.keyfile is None else ("certfile", "keyfile")
        )
        yield Conflict(
            paths=(f"{section}.{missing}", f"{section}.{there}"),
            text=f"is missing, and {section}.{there} is given; they belong together",
        )


def _kafka_has_brokers(config: Config) -> Iterator[Conflict]:
    if config.log.kind == "kafka" and config.log.kafka.bootstrap_servers is None:
        yield Conflict(
            paths=("log.kafka.bootstrap_servers", "log.kind"),
            text="is missing, and log.kind is kafka; name its brokers, for example localhost:9092",
        )


def _topics_differ(config: Config) -> Iterator[Conflict]:
    seen: dict[str, str] = {}
    names = ("delay", "progress", "rejected", "dead_letter", "cluster")
    for path, topic in [
        *((f"topics.{name}", getattr(config.topics, name)) for name in names),
    ]:
        # Kafka's metrics write '.' as '_', so it refuses a topic that differs from another by that
        # only.
        other = seen.setdefault(topic.replace(".", "_"), path)
        if other != path:
            yield Conflict(
                paths=(path, other),
                text=(
                    f"{topic} is the topic of {other} too, as Kafka reads names ('.' and '_' are "
                    "one); give each its own"
                ),
            )


def _replicas_suffice(config: Config) -> Iterator[Conflict]:
    replicas, insync = config.topics.replication_factor, config.topics.min_insync_replicas
    if insync is not None and 0 < replicas < insync:
        yield Conflict(
            paths=("topics.min_insync_replicas", "topics.replication_factor"),
            text=f"{insync} is more than topics.replication_factor ({replicas}), so nothing could "
            f"be written; use at most {replicas}",
        )


def _retries_grow(config: Config) -> Iterator[Conflict]:
    base, cap = config.delivery.retry_base, config.delivery.retry_cap
    if base > cap:
        yield Conflict(
            paths=("delivery.retry_base", "delivery.retry_cap"),
            text=(
                f"{format_duration(base)} is more than delivery.retry_cap "
                f"({format_duration(cap)}); the first wait cannot exceed the longest"
            ),
        )


def _something_is_allowed(config: Config) -> Iterator[Conflict]:
    if not config.targets.allow or "*" in config.targets.deny:
        path = "targets.deny" if config.targets.allow else "targets.allow"
        yield Conflict(
            paths=(path,),
            text="leaves no topic to deliver to, so that every message would be rejected; "
            "to deliver nothing for a while, set workers.push: off",
        )


def _checkpoints_survive_the_disk(config: Config) -> Iterator[Conflict]:
    location, data_dir = config.checkpoints.location, os.path.realpath(config.node.data_dir)
    if location is None or ("://" in location and not location.startswith("file://")):
        return
    folder = os.path.realpath(location.removeprefix("file://"))
    if os.path.commonpath([folder, data_dir]) == data_dir:
        yield Conflict(
            paths=("checkpoints.location", "node.data_dir"),
            text=f"lies inside node.data_dir ({config.node.data_dir}) and would be lost with it; "
            "name a folder on another disk, or a URL",
        )


def _tls_is_complete(config: Config) -> Iterator[Conflict]:
    tls, section = config.admin.tls, "admin.tls"
    if (tls.certificate is None) != (tls.key is None):
        missing, there = ("key", "certificate") if tls.key is None else ("certificate", "key")
        yield Conflict(
            paths=(f"{section}.{missing}", f"{section}.{there}"),
            text=f"is missing, and {section}.{there} is given; they belong together",
        )
    if tls.client_ca is not None and tls.certificate is None:
        yield Conflict(
            paths=(f"{section}.client_ca", f"{section}.certificate"),
            text=(
                f"is given without {section}.certificate, so there would be no TLS to show "
                "certificates in"
            ),
        )


def _jwt_is_complete(config: Config) -> Iterator[Conflict]:
    jwt, section = config.admin.jwt, "admin.jwt"
    given = {name: getattr(jwt, name) for name in ("issuer", "audience", "jwks")}
    if not any(given.values()):
        return
    for missing in (name for name, value in given.items() if value is None):
        there = next(name for name, value in given.items() if value is not None)
        yield Conflict(
            paths=(f"{section}.{missing}", f"{section}.{there}"),
            text=(
                f"is missing, and {section}.{there} is given; issuer, audience and jwks belong "
                "together"
            ),
        )
    if config.admin.tokens is None:
        yield Conflict(
            paths=(f"{section}.issuer", "admin.tokens"),
            text=(
                "is given without admin.tokens, whose entries with `claims` say what the tokens "
                "of the issuer permit"
            ),
        )
    if jwt.jwks is not None and "://" in jwt.jwks:
        scheme, _, rest = jwt.jwks.partition("://")
        if scheme != "https" and not (
            scheme == "http" and is_loopback(urlsplit(f"//{rest}").hostname or "")
        ):
            yield Conflict(
                paths=(f"{section}.jwks",),
                text=(
                    "must begin with https://: whoever can change the keys on the way can make "
                    "tokens"
                ),
            )


def _untrusted_clients_are_kept_out(config: Config) -> Iterator[Conflict]:
    admin = config.admin
    if not is_loopback(admin.host) and admin.tokens is None and not admin.open:
        yield Conflict(
            paths=("admin.host", "admin.tokens"),
            text=(
                f"{admin.host} can be reached from other machines, and admin.tokens is not set, "
                "so that everybody there could read and change every message; name a file of "
                "tokens, or set admin.open: true if that is meant"
            ),
        )


def _audit_is_complete(config: Config) -> Iterator[Conflict]:
    audit = config.audit
    if audit.required and audit.path is None:
        yield Conflict(
            paths=("audit.required", "audit.path"),
            text=(
                "is on, and the entries are log lines, of which none is known to be durable; name "
                "a file for them with audit.path"
            ),
        )


def _properties_agree(config: Config) -> Iterator[Conflict]:
    record_bytes, timeout_ms = config.topics.message_bytes_max, config.delivery.transaction_timeout
    records, timeout = "topics.message_bytes_max", "delivery.transaction_timeout"
    # (property, least, most, the key it must agree with); librdkafka itself insists on the last
    # three.
    bounds = (
        ("message.max.bytes", max(record_bytes, progress_bytes_max(STEP_MESSAGES)), None, records),
        ("receive.message.max.bytes", record_bytes + RESPONSE_OVERHEAD, None, records),
        ("queue.buffering.max.messages", STEP_MESSAGES, None, None),
        ("queue.buffering.max.kbytes", -(-step_bytes(record_bytes) // 1024), None, records),
        ("message.timeout.ms", 1, timeout_ms, timeout),
        ("delivery.timeout.ms", 1, timeout_ms, timeout),
        ("socket.timeout.ms", 10, timeout_ms + 100, timeout),
    )
    properties = config.log.kafka.properties
    for name in properties:
        if name in _RESERVED_PROPERTIES:
            yield Conflict(paths=(f"{PROPERTIES}.{name}",), text=_RESERVED_PROPERTIES[name])
    for name, least, most, path in bounds:
        text = properties.get(name, "")
        if re.fullmatch(r"\d{1,15}", text, re.ASCII) and not least <= int(text) <= (
            most or int(text)
        ):
            bound = f"at least {least}" if int(text) < least else f"at most {most}"
            yield Conflict(
                paths=(f"{PROPERTIES}.{name}", *([path] if path else [])),
                text=f"{text} does not go with {path or 'the messages of one step'}; use {bound}",
            )
