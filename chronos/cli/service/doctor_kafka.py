"""`chronos doctor` on Kafka: the brokers, Chronos's own topics, the targets, and the clocks.

Topics are not created or changed. One probe record is written to the delay topic; it is never
delivered."""

import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from chronos.cli.output import number
from chronos.cli.service.findings import (
    Finding,
    failed,
    guarded,
    note,
    ok,
    problem,
)
from chronos.core.clock import CLOCK_TOLERANCE_MS
from chronos.errors import ChronosError, ConfigurationError

if TYPE_CHECKING:
    from chronos.config import Config
    from chronos.node.opening import KafkaLog
    from chronos.ports import Clock, TopicInfo

CONNECT_S = 2.0
"""How long a broker may take to accept a connection."""

PROBE_S = 10.0
"""How long the brokers may take to acknowledge the probe."""

ONE_REPLICA = "a shard that delivers to such a topic waits while its broker is down"
"""The consequence of a topic with one replica (docs/contributing/laws.md, law 8)."""


def examine_kafka(
    config: "Config", clock: "Clock", due_targets: Callable[[], set[str]]
) -> Generator[Finding, None, "dict[str, TopicInfo]"]:
    """1. Brokers, 2. own topics, 3. targets, 4. clocks. Returns the descriptions of those own
    topics that are as they should be.

    `due_targets`: the targets of the messages that are due next.
    """
    from chronos.node.opening import open_kafka

    log = yield from guarded("log", lambda: open_kafka(config))
    if log is None:
        return {}
    try:
        if not (yield from _brokers(log, config)):
            return {}
        infos = yield from _own_topics(log, config)
        yield from _targets(log, config, due_targets())
        yield from _broker_clock(log, config, clock, is_there=config.topics.delay in infos)
        return infos
    finally:
        log.close()


def _brokers(log: "KafkaLog", config: "Config") -> Generator[Finding, None, bool]:
    """Return whether any broker answers."""
    brokers = yield from guarded("log", log.brokers)
    if brokers is None:
        return False
    unreachable = [f"{host}:{port}" for host, port in brokers if not _accepts(host, port)]
    shown = ", ".join(f"{host}:{port}" for host, port in brokers)
    if unreachable:
        yield problem(
            "log",
            f"the brokers name themselves {shown}, and no connection can be made from here to "
            f"{', '.join(unreachable)}: check that they run, and their advertised.listeners",
            exit_code=3,
        )
    else:
        yield ok(
            "log", f"brokers at {shown} can be reached from {config.log.kafka.bootstrap_servers}"
        )
    return True


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True


def _own_topics(
    log: "KafkaLog", config: "Config"
) -> Generator[Finding, None, "dict[str, TopicInfo]"]:
    """Return the descriptions of the topics that are there and have the right settings; empty after
    a problem."""
    from chronos.node.topics import check_progress_fits, own_topics

    specs = own_topics(config)
    infos = yield from guarded("topics", lambda: log.describe([spec.name for spec in specs]))
    if infos is None:
        return {}
    missing = [spec for spec in specs if infos[spec.name] is None]
    if missing:
        names = ", ".join(spec.name for spec in missing)
        if not config.topics.create:
            refused: str | None = "topics.create is off: create them"
        else:
            problems = yield from guarded("topics", lambda: log.creation_problems(missing))
            if problems is None:
                return {}
            refused = "; ".join(problems) or None
        if refused is None:
            yield note("topics", f"missing: {names}; the service creates them at its first start")
        else:
            yield problem(
                "topics", f"missing: {names}; {refused}", exit_code=ConfigurationError.exit_code
            )
    there = [spec for spec in specs if spec not in missing]
    try:
        found = log.prepare(there, create=False) if there else {}
        if config.topics.progress in found:
            check_progress_fits(config, found[config.topics.progress])
    except ChronosError as error:
        yield failed("topics", error)
        return {}
    yield from _permissions(log, [spec.name for spec in there])
    if there and not missing:
        yield ok("topics", f"{', '.join(found)}: {config.shards} partitions each")
    for text in (text for info in found.values() for text in info.advice):
        yield note("topics", text)
    single = [name for name, info in found.items() if info.replicas == 1]
    if single:
        yield note("topics", f"one replica only: {', '.join(single)}; {ONE_REPLICA}")
    return found


def _permissions(log: "KafkaLog", names: Sequence[str]) -> Iterator[Finding]:
    denied = yield from guarded("topics", lambda: log.denied(names))
    for name, operations in (denied or {}).items():
        yield problem(
            "topics",
            (
                f"{name}: the brokers do not let this client {' and '.join(operations)}: add "
                "ACLs, see docs/how-to/kafka.md"
            ),
            exit_code=ConfigurationError.exit_code,
        )


def _targets(log: "KafkaLog", config: "Config", targets: set[str]) -> Iterator[Finding]:
    """The targets of the messages that are due next: they exist, and have more than one replica."""
    if not targets:
        return
    infos = yield from guarded("targets", lambda: log.describe(sorted(targets)))
    if infos is None:
        return
    missing = sorted(name for name, info in infos.items() if info is None)
    if missing and not config.delivery.create_topics:
        yield note(
            "targets",
            f"missing: {', '.join(missing)}; messages for them become dead letters; create them",
        )
    forbidden = sorted(
        name for name, info in infos.items() if info is not None and not info.writable
    )
    if forbidden:
        text = (
            f"not writable: {', '.join(forbidden)}; messages for them become dead letters; add "
            "the ACL Write"
        )
        yield note("targets", text)
    single = sorted(name for name, info in infos.items() if info is not None and info.replicas == 1)
    if single:
        yield note("targets", f"one replica only: {', '.join(single)}; {ONE_REPLICA}")
    if not missing and not forbidden and not single:
        yield ok("targets", f"{', '.join(sorted(targets))}: they exist and are replicated")


def _broker_clock(
    log: "KafkaLog", config: "Config", clock: "Clock", *, is_there: bool
) -> Iterator[Finding]:
    """The broker's timestamp of a probe, which is not delivered, against the clock of this
    machine."""
    if not is_there:
        yield note(
            "clock",
            f"the brokers' clocks are not known: the probe is written to {config.topics.delay}",
        )
        return
    before_ms = clock.now_ms()
    probe = (config.topics.delay, None, None, {"chronos-action": b"probe"}, 0)
    appended = yield from guarded("clock", lambda: log.append([probe], PROBE_S))
    if appended is None:
        return
    stamp_ms, after_ms = appended[0].timestamp_ms, clock.now_ms()
    apart_ms = max(before_ms - stamp_ms, stamp_ms - after_ms, 0)
    if apart_ms > CLOCK_TOLERANCE_MS:
        yield problem(
            "clock",
            f"the broker's and this machine's differ by {number(apart_ms)} ms; nothing is "
            f"delivered while they differ by more than {CLOCK_TOLERANCE_MS} ms: check NTP on both",
        )
        return
    yield ok("clock", f"within {number(apart_ms)} ms of the broker's")
