"""The context of a replica: its settings, and the parts of a node that it works with."""

from collections.abc import Callable

from msgspec import Struct

from chronos.core.shard.rules import Rules
from chronos.core.timefmt import MS_MAX
from chronos.ports import Clock, Log, Store, Tracing
from chronos.workers.replica.leadership import Assignment
from chronos.workers.replica.recovery import RecoveryCost
from chronos.workers.step.planned import Limits
from chronos.workers.step.push import Pusher


class ReplicaSettings(Struct, frozen=True, kw_only=True):
    """The settings of a replica, from the configuration."""

    limits: Limits
    delay_topic: str
    progress_topic: str
    cluster: str
    """The name that progress records carry."""
    node: str
    instance: str
    """Id of the node's data directory."""
    delivered_ms: int | None
    """Retention of settled messages; None: no deleter."""
    deduplication_ms: int


class ReplicaContext(Struct, frozen=True, kw_only=True):
    """The parts of a node that a replica and its master work with."""

    log: Log
    store: Store
    clock: Clock
    rules: Rules
    settings: ReplicaSettings
    pusher: Callable[[], Pusher]
    """Makes the pusher of one leadership."""
    guard: Callable[[], str | None]
    """Returns why no step may begin now; None if one may."""
    assigned: Callable[[], Assignment]
    """Returns the assignment as of now."""
    restore: Callable[[RecoveryCost], bool] = lambda cost: False
    """Replaces the store's contents with a checkpoint where that is needed or cheaper than the
    replay; returns whether it did, and raises Retry while it cannot be done."""
    bounded: bool = False
    """Read the delay partition in bounded memory, see `ports.ReaderMode`."""
    elsewhere: Callable[[int], int] = lambda shard: MS_MAX
    """Returns a bound (epoch ms): every record that another shard still forwards to this one has a
    first timestamp at or after it."""
    tracing: Tracing | None = None
    """Observes the committed steps; None: tracing is off."""
