"""Who is master of which shard, as values: what nodes say of themselves, and what the controller publishes.

What it makes of the one to get the other is `planning.plan`. Safety never depends on either: the log fences.
"""

from collections.abc import Mapping

from msgspec import Struct

REBALANCE_AFTER_MS = 60_000
"""How long a member must have been there before shards are moved to it only to spread them evenly."""

REPLACE_AFTER_MS = 600_000
"""How long a node may be away before its replicas are made anew elsewhere: longer than a repair by hand."""

OK, DEGRADED, UNREACHABLE = "answers", "late", "silent"
"""What a node hears from the log. A master that hears nothing gives way to a node that is answered, and to no other: DEGRADED
lies between the two, so that brokers that are gone for all move nothing, whichever node notices first."""


class ReplicaReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node says of its replica of one shard."""

    applied: int | None = None
    """Offset in the progress partition behind the last record applied; None: not known yet, which never wins."""
    pull_offset: int = 0
    """Offset in the delay partition behind the last record executed."""
    role_epoch: int = 0
    """The greatest role epoch seen in the progress log."""
    role_node: str = ""
    """The node whose record has that role epoch; empty: not told."""
    role_instance: str = ""
    """The id of its data directory, which may be another one now; empty: not told."""
    log_epoch: int = 0
    """The greatest log epoch seen in the progress log."""
    kept_applied: int | None = None
    """`applied` as of the last flush: from there on a crash leaves it to the logs. None: not told."""
    kept_pull_offset: int | None = None
    """`pull_offset` as of the last flush."""
    role: str = "starting"
    """What the replica does at the moment: `master`, `follower`, `recovering`, ..."""
    reason: str | None = None
    """Why it is paused, for people."""


class Member(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node publishes while its session lives."""

    node: str
    instance: str
    """Id of its data directory."""
    address: str
    """URL of its admin interface, as other nodes reach it."""
    version: str
    started_ms: int
    leaving: bool = False
    """It is about to stop: give its shards to others."""
    log: str = OK
    """What it hears from the log's brokers: OK, DEGRADED or UNREACHABLE."""
    token: str = ""
    """Who shows it to another member is this node: only the coordinator is told. Never logged, never shown."""
    replicas: Mapping[int, ReplicaReport] = {}


class ShardRoles(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the controller decided for one shard."""

    master: str | None = None
    """The node; None: nobody can be."""
    epoch: int = 0
    """The role epoch: greater with every change of master, and than any that a member reported before."""
    previous: str | None = None
    """The master before this one, which may still be finishing its step."""
    replicas: tuple[str, ...] = ()
    """Nodes that hold the shard, in preferred order."""
    since_ms: int = 0
    """When this master was given the role; while there is none, when the last one was lost."""
    applied: int = 0
    """The greatest `ReplicaReport.applied` the controller has heard of for this shard."""


class Change(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the history of roles."""

    at_ms: int
    shard: int
    master: str | None
    previous: str | None
    epoch: int
    why: str
    """`first`, `lost its session`, `leaving`, `asked for by an operator`, `drained`, `spread evenly`, ... for people."""


class Roles(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything the controller publishes."""

    controller: str = ""
    """The node that published this."""
    controller_epoch: int = 0
    """Greater with every new controller."""
    shards: Mapping[int, ShardRoles] = {}
    drained: tuple[str, ...] = ()
    """Nodes that are to be master of nothing, until an operator says otherwise."""
    away: Mapping[str, int] = {}
    """Nodes that hold a shard and are no members at the moment, and since when (epoch ms)."""
    history: tuple[Change, ...] = ()
    """The last changes, newest last; at most HISTORY_MAX."""


HISTORY_MAX = 50


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an operator asks of the controller."""

    kind: str
    """`transfer`: make `node` master of `shard`. `drain`: make it master of nothing. `undrain`: the end of that."""
    node: str
    shard: int = -1
    at_ms: int = 0


class ClusterView(Struct, frozen=True, kw_only=True):
    """What the controller knows at one moment."""

    now_ms: int
    controller: str
    controller_epoch: int
    shards: int
    """How many shards there are."""
    replication: int | None
    """How many nodes hold a shard; None: all of them."""
    members: Mapping[str, Member]
    """Nodes with a live session."""
    since_ms: Mapping[str, int]
    """For each member, when this controller first saw it: those who have just come are not given more at once."""
    roles: Roles
    """What was published last."""
    requests: tuple[Request, ...] = ()
    """Requests not yet answered, oldest first."""
    rebalance_after_ms: int = REBALANCE_AFTER_MS
    """How long a member must have been there before shards are moved to it only to spread them evenly."""
    replace_after_ms: int = REPLACE_AFTER_MS
    """How long a node may be away before its replicas are made anew elsewhere."""
