"""One shard of a node: constructs its replica and its driver, and describes the replica to the cluster."""

from collections.abc import Callable, Mapping
from typing import Protocol

from chronos.config import Config
from chronos.core.codec import State
from chronos.core.cron import next_cron
from chronos.core.health import Verdict
from chronos.core.rates import Rate, parse_rate
from chronos.core.roles import ReplicaReport
from chronos.core.rules import NO_LIMIT_MS, Rules
from chronos.core.selector import Selector
from chronos.core.timefmt import MS_MAX
from chronos.errors import ChronosError
from chronos.node.driver import ShardDriver
from chronos.node.opening import own_topics
from chronos.node.outcomes import Outcomes
from chronos.ports import Clock, Log, Store
from chronos.workers.checkpoint import LogPosition
from chronos.workers.limits import Limits
from chronos.workers.observer import Look
from chronos.workers.push import Pusher
from chronos.workers.rates import RateLimits, ShardRates
from chronos.workers.recovery import RecoveryCost
from chronos.workers.replica import Replica
from chronos.workers.replica_state import Assignment, ReplicaState
from chronos.workers.stall import STEP_MS_MAX


def make_shard(
    config: Config,
    number: int,
    *,
    log_port: Log,
    store: Store,
    clock: Clock,
    instance: str,
    guard: Callable[[], str | None],
    assigned: Callable[[], Assignment],
    restore: Callable[[RecoveryCost], bool],
    selector: Selector | None = None,
    bounded: bool = False,
    failed: Callable[[ChronosError], None],
    limits: RateLimits | None = None,
    outcomes: Outcomes | None = None,
    elsewhere: Callable[[int], int] = lambda shard: MS_MAX,
) -> ShardDriver:
    """Return the driver, not started yet. `guard`, `assigned`, `restore`, `bounded`, `elsewhere`: see `workers.replica.Replica`.

    `limits`: the rate limits in force, which all shards of the node share; None: those of the configuration.
    `outcomes`: where the node counts the outcomes of its steps.

    `selector`: the one of the node. `failed`: called once, with the error that ended the driver's thread.
    """
    topics, delivery, settings = config.topics, config.delivery, config.store
    rules = Rules(
        shard=number,
        shards=config.shards,
        own_topics=(
            topics.delay,
            topics.progress,
            topics.rejected,
            topics.dead_letter,
            topics.cluster,
            config.audit.topic,
        ),
        allow=config.targets.allow,
        deny=config.targets.deny,
        max_delay_ms=config.limits.max_delay,
        max_past_ms=config.limits.max_past or NO_LIMIT_MS,
        deduplication_ms=config.retention.deduplication,
        misplaced=topics.misplaced,
        delay_topic=topics.delay,
        attempts_max=delivery.attempts_max,
        next_cron=next_cron,
    )

    rate_limits = RateLimits(configured_rates(config)) if limits is None else limits

    def pusher() -> Pusher:
        return Pusher(
            log_port,
            rules,
            delay_topic=topics.delay,
            rejected_topic=topics.rejected,
            dead_letter_topic=topics.dead_letter,
            create_topics=delivery.create_topics,
            attempts_max=delivery.attempts_max,
            retry_base_ms=delivery.retry_base,
            retry_cap_ms=delivery.retry_cap,
            own_topics=own_topics(config)[2:] if topics.create else (),
            rates=ShardRates(number, rate_limits, began_ms=clock.now_ms()),
            selector=selector if config.delivery_faults.enabled else None,
        )

    replica = Replica(
        log_port=log_port,
        store=store,
        clock=clock,
        rules=rules,
        pusher=pusher,
        limits=Limits(
            messages=delivery.batch_messages,
            bytes=delivery.batch_bytes,
            wheel_messages=settings.wheel_messages,
            wheel_bytes=settings.wheel_bytes,
            wheel_horizon_ms=settings.wheel_horizon,
            pull=config.workers.pull,
            push=config.workers.push,
            wait_for_transactions=delivery.open_transactions == "wait",
        ),
        delay_topic=topics.delay,
        progress_topic=topics.progress,
        cluster=config.cluster,
        node=config.node.id,
        instance=instance,
        delivered_ms=config.retention.delivered if config.workers.delete else None,
        deduplication_ms=config.retention.deduplication,
        guard=guard,
        assigned=assigned,
        restore=restore,
        bounded=bounded,
        elsewhere=elsewhere,
    )
    return ShardDriver(replica, clock=clock, failed=failed, outcomes=outcomes)


def configured_rates(config: Config) -> Mapping[str, Rate | None]:
    """Return the rate limits of the configuration: pattern -> rate; None: not limited."""
    return {pattern: parse_rate(text) for pattern, text in config.delivery.rates.items()}


def report(shard: ShardDriver, flushed: LogPosition, verdict: Verdict | None = None) -> ReplicaReport:
    """Return the report of the replica to the cluster.

    `flushed`: the position of its store at its last flush. `verdict`: of this node on the shard's master.
    """
    state = shard.state
    return ReplicaReport(
        applied=state.applied if shard.replica.known else None,
        pull_offset=state.pull_offset,
        role_epoch=state.role_epoch,
        role_node=state.node,
        role_instance=state.instance,
        log_epoch=state.log_epoch,
        role=shard.role,
        reason=shard.paused,
        kept_applied=flushed.applied,
        kept_pull_offset=flushed.pull_offset,
        waiting=shard.replica.waiting,
        judged=0 if verdict is None else verdict.epoch,
        unhealthy=verdict is not None and not verdict.healthy,
    )


class Shown(Protocol):
    """The part of a replica and its thread that shows how far its master has come."""

    @property
    def role(self) -> ReplicaState: ...

    @property
    def paused(self) -> str | None: ...

    @property
    def step_began_ms(self) -> int | None: ...

    @property
    def state(self) -> State: ...


def look(shard: Shown, *, leads: bool, now_ms: int) -> Look | None:
    """Return how far the shard's master has come, as this node's replica shows it; None if it does not show that now.

    `leads`: the master is this node. A follower that is paused, or whose thread hangs, stands still by itself; so does a deposed
    master that has not noticed it.
    """
    role, began_ms = shard.role, shard.step_began_ms
    if role not in {ReplicaState.MASTER, ReplicaState.FOLLOWER} or (role is ReplicaState.MASTER and not leads):
        return None
    if not leads and (shard.paused is not None or began_ms is None or now_ms - began_ms >= STEP_MS_MAX):
        return None
    state = shard.state
    return Look(cursor=state.cursor, pull_offset=state.pull_offset)
