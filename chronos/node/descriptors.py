"""The open files that a node needs, and the limit of this process, which is raised at the start if
it is not ample."""

import resource
from typing import TYPE_CHECKING

import structlog

from chronos.config import Config
from chronos.errors import ConfigurationError

if TYPE_CHECKING:
    from chronos.adapters.kafka.log import KafkaLog as KafkaLog


log = structlog.get_logger("chronos.node")

BASE = 100
"""For the process, its coordinator, and some connections over HTTP (measured: 70)."""

PER_SHARD = {"kafka": 34, "embedded": 8}
"""By `log.kind`, for each shard: six of its store, and with Kafka up to 28 of the clients of one
broker, most of them pipes (measured with 16 and 64 shards). A table of a store takes one more, and
a further broker up to six."""

AMPLE = 2
"""Times as many are asked for as are needed, for tables, brokers and connections."""


def needed(config: Config) -> int:
    """Return the least number of file descriptors with which the node works."""
    return BASE + config.shards * PER_SHARD[config.log.kind]


def too_few(config: Config) -> str | None:
    """Return what to do about a limit that cannot be raised as far as the node needs, for people;
    None if it is high enough."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        None if hard == resource.RLIM_INFINITY or hard >= needed(config) else _problem(config, hard)
    )


def _problem(config: Config, limit: int) -> str:
    least = needed(config)
    return (
        f"this process may open {limit:,} files, and {config.shards} shards need {least:,}: raise "
        f"the limit of open files to {least} or more (`LimitNOFILE` of systemd, `--ulimit nofile` "
        "of Docker, `ulimit -n` of a shell)"
    )


def raise_limit(config: Config) -> None:
    """Raise the limit of this process to the one that the system allows, if it is not ample. Raises
    ConfigurationError."""
    if (problem := too_few(config)) is not None:
        raise ConfigurationError([problem])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ample = AMPLE * needed(config)
    if soft in (resource.RLIM_INFINITY, hard) or soft >= ample:
        return
    for limit in (hard, ample, needed(config)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):  # macOS names no limit and allows less
            continue
        log.info("limit of open files raised", before=soft, now=limit, needed=needed(config))
        return
    if soft < needed(config):
        raise ConfigurationError([_problem(config, soft)])
