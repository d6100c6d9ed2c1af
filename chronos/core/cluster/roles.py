"""The values of a cluster: reports of its members, requests of operators, the roles that the
controller publishes, and the view from which they are planned.

Values only: `assignment.plan` computes the roles, and a coordinator carries reports, requests and
roles between the nodes. Safety depends on none of them: the log fences (law 5)."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from chronos.core.cluster.health import OFF, Mode
from chronos.errors import NodeIdTaken

REBALANCE_AFTER_MS = 60_000
"""Time a member must have been present before shards are moved to it only to spread them evenly."""

REPLACE_AFTER_MS = 600_000
"""Time a node may be away before its replicas are recreated elsewhere: longer than a manual
repair."""

AWAY_MS = 7 * 86_400_000
"""Time a node may be away before it is forgotten: nothing is kept for it any longer, neither its
place nor the logs. When it comes back, it is a new node that starts from a checkpoint."""

OK, DEGRADED, UNREACHABLE = "answers", "late", "silent"
"""Reachability of the log from a node. An UNREACHABLE master is replaced by a node that is OK,
never by a DEGRADED one: an outage of the brokers for all nodes therefore moves no role, regardless
of which node notices it first."""

PROGRESS_EVERY_S = 2.0
"""Least pause between two publications of roles that differ only in progress: a new controller
needs it only to tell a replica that lacks records from one that lags by a moment."""

HISTORY_MAX = 50
"""Most changes in the history of roles."""

NUMBER_MAX: Final = 2**53 - 1
"""Greatest number in a member or in roles: every reader of JSON keeps integers exact up to it, and
no epoch, offset or time reaches it. A greater one was not written by Chronos."""

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
"""An epoch, an offset or a time (epoch ms)."""


class ReplicaReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The report of a node about its replica of one shard."""

    applied: Number | None = None
    """Offset in the progress partition after the last record applied; None: unknown, and the
    replica cannot be made master."""
    pull_offset: Number = 0
    """Offset in the delay partition after the last record executed."""
    role_epoch: Number = 0
    """The greatest role epoch seen in the progress log."""
    role_node: str = ""
    """The node whose record has that role epoch; empty: not reported."""
    role_instance: str = ""
    """The id of that node's data directory at the time; empty: not reported."""
    log_epoch: Number = 0
    """The greatest log epoch seen in the progress log."""
    kept_applied: Number | None = None
    """`applied` as of the last flush: a crash replays the logs from there. None: not reported."""
    kept_pull_offset: Number | None = None
    """`pull_offset` as of the last flush."""
    role: str = "starting"
    """The replica's state: `master`, `follower`, `recovering`, ..."""
    reason: str | None = None
    """Why the replica is paused, for people."""
    waiting: Mapping[str, int] = {}
    """Limited target -> number of messages that wait for its rate alone; the longest lanes of a
    master."""
    judged: Number = 0
    """The role epoch of the shard's master that this node judges by probes; 0: it judges none."""
    unhealthy: bool = False
    """The verdict: this node finds that master unhealthy."""


class Member(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The report of a node while its session lives."""

    node: str
    instance: str
    """Id of its data directory, which a copy of the directory has too."""
    address: str
    """URL of its admin interface, as other nodes reach it."""
    version: str
    started_ms: Number
    leaving: bool = False
    """True: the node is about to stop, and other nodes must take over its shards."""
    eligible: bool = True
    """False: the node holds replicas and never becomes master."""
    log: str = OK
    """Reachability of the log's brokers: OK, DEGRADED or UNREACHABLE."""
    token: str = ""
    """Authenticates this node to other members. Only the coordinator holds it; it is never logged
    or shown."""
    place: str = ""
    """Host, path and file of its data directory; empty: not reported."""
    host: str = ""
    """The machine that it shares with other nodes (`node.host`); empty: none shares its machine."""
    retiring: bool = False
    """True: it stops for good as soon as it holds no replica; other nodes get its replicas."""
    replicas: Mapping[int, ReplicaReport] = {}
    zone_data: str = ""
    """Version of its zone data, such as `2026f`; empty: not reported."""

    @property
    def machine(self) -> str:
        """The name of its machine: that of the node where no other node shares it."""
        return self.host or self.node

    @property
    def stays(self) -> bool:
        """True if it is not about to stop, neither for now nor for good."""
        return not self.leaving and not self.retiring


def same_directory(member: Member, other: Member) -> bool:
    """Return whether two processes use one data directory. A directory is locked by its process, so
    the later process knows that the earlier one has ended. A copy of a directory has the same id
    and another `place`."""
    return member.instance == other.instance and (
        member.place == other.place or "" in (member.place, other.place)
    )


def id_taken(node: str, cluster: str, holder: Member | None) -> NodeIdTaken:
    """Return the error of a node whose id another data directory has. `holder`: as it reports;
    None: not known."""
    where = "another process" if holder is None else f"the node at {holder.address}"
    return NodeIdTaken(
        f"node.id {node} is taken: {where} serves cluster {cluster} under it from another data "
        "directory; give this node an id of its own, or stop the other one"
    )


class ShardRoles(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The controller's decision for one shard."""

    master: str | None = None
    """The master's node; None: no node can be master."""
    epoch: Number = 0
    """The role epoch: every change of master increases it, beyond every role epoch that a member
    reported."""
    previous: str | None = None
    """The previous master, which may still be finishing its step."""
    replicas: tuple[str, ...] = ()
    """Nodes that hold the shard, in preferred order."""
    since_ms: Number = 0
    """Time of the assignment to this master (epoch ms); without a master, the time when the last
    one was lost."""
    applied: Number = 0
    """The greatest `ReplicaReport.applied` reported for this shard: by its members while its master
    leads, ever while none does."""


class Change(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the history of roles."""

    at_ms: Number
    shard: int
    master: str | None
    previous: str | None
    epoch: Number
    why: str
    """`first`, `lost its session`, `leaving`, `asked for by an operator`, `drained`, `spread
    evenly`, ... for people."""


class Roles(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that the controller publishes."""

    controller: str = ""
    """The node that published this."""
    controller_epoch: Number = 0
    """Grows with every new controller."""
    shards: Mapping[int, ShardRoles] = {}
    drained: tuple[str, ...] = ()
    """Nodes that must not be master of any shard until an operator ends their drain."""
    away: Mapping[str, Number] = {}
    """Nodes that hold a shard, or are drained, but are not members at the moment -> the time since
    when (epoch ms)."""
    limited: Mapping[str, str] = {}
    """Rate limits that were set at run time: pattern of target topics -> rate as users write it."""
    configured: Mapping[str, Mapping[str, str]] = {}
    """The configuration that all registries serve: namespace -> key -> value."""
    armed: Mapping[int, Number] = {}
    """Shards for which an operator permitted one failover on failed probes -> the end of the
    permission (epoch ms)."""
    unhealthy_moves: Mapping[int, Number] = {}
    """Shards that were moved because their master was unhealthy -> when (epoch ms), for
    `health.MOVED_MS`."""
    history: tuple[Change, ...] = ()
    """The last changes, newest last; at most HISTORY_MAX."""
    hosts: Mapping[str, str] = {}
    """Registered nodes that share their machines with others -> the machine."""
    rules: Number = 1
    """The number of the rules that masters may write; a node that does not know them ends. Version
    1 writes none, which reads as 1."""

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes for which a place is kept, whether they are present or not."""
        return frozenset(self.drained).union(
            self.away, *(given.replicas for given in self.shards.values())
        )

    @property
    def are_empty(self) -> bool:
        """Return whether nothing was decided about any shard yet."""
        return not self.shards

    @property
    def decisions(self) -> "Roles":
        """These roles with every progress set to 0: progress grows all the time and is no
        decision."""
        return replace(
            self, shards={shard: replace(given, applied=0) for shard, given in self.shards.items()}
        )


def registered(members: Mapping[str, Member], roles: Roles | None) -> frozenset[str]:
    """Return the nodes of a cluster: those that are present, and those for which a place is
    kept."""
    return (frozenset() if roles is None else roles.nodes).union(members)


def machines(members: Mapping[str, Member], roles: Roles | None) -> frozenset[str]:
    """Return the machines of a cluster's registered nodes: what fails together counts once."""
    hosts = {} if roles is None else roles.hosts
    return frozenset(
        members[node].machine if node in members else hosts.get(node, node)
        for node in registered(members, roles)
    )


def verdicts(members: Mapping[str, Member], shard: int, epoch: int) -> dict[str, bool]:
    """Return the machines that judge the shard's master with this role epoch, and whether each
    finds it healthy. A machine with several nodes finds it healthy if one of them does. Verdicts on
    earlier masters do not count."""
    healthy: dict[str, bool] = {}
    for member in members.values():
        replica = member.replicas.get(shard)
        if replica is not None and 0 < replica.judged == epoch:
            machine = member.machine
            healthy[machine] = healthy.get(machine, False) or not replica.unhealthy
    return healthy


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request of an operator to the controller."""

    kind: str
    """`transfer`: make `node` master of `shard`. `drain`: move all master roles away from it.
    `undrain`: end that. `forget`: keep nothing for it any longer, as if it had been away for
    AWAY_MS. `limit`: set the rate limit of `pattern`, or remove it. `configure`: set the value of
    `key` in a namespace of the registries' configuration, or delete it. `arm`: permit one failover
    of `shard` on failed probes."""
    node: str
    shard: int = -1
    """The shard of a `transfer` or `arm`; -1 for the others."""
    at_ms: Number = 0
    """Time of the request (epoch ms)."""
    pattern: str = ""
    """The target topics of a `limit`."""
    rate: str = ""
    """Their rate as users write it; empty: the limit set at run time is removed."""
    namespace: str = ""
    """The namespace of a `configure`."""
    key: str = ""
    """The key in it."""
    value: str | None = None
    """Its value; None: it is deleted."""


class ClusterState(Struct, frozen=True, kw_only=True):
    """The state of the cluster at one moment, as the controller's coordinator knows it."""

    now_ms: int
    controller: str
    controller_epoch: int
    members: Mapping[str, Member]
    """Nodes with a live session."""
    since_ms: Mapping[str, int]
    """Member -> when this controller first saw it (epoch ms): newcomers are not given shards at
    once."""
    roles: Roles
    """The roles published last."""
    requests: tuple[Request, ...] = ()
    """Requests not yet answered, oldest first."""


class ClusterView(ClusterState, frozen=True, kw_only=True):
    """The state of the cluster, with the settings and observations of the controller's node: the
    input of `assignment.plan`."""

    shards: int
    """Number of shards."""
    replication: int | None
    """Nodes that hold each shard; None: all of them."""
    rebalance_after_ms: int = REBALANCE_AFTER_MS
    """Time a member must have been present before shards are moved to it only to spread them
    evenly."""
    replace_after_ms: int = REPLACE_AFTER_MS
    """Time a node may be away before its replicas are recreated elsewhere."""
    in_sync_from: Mapping[int, int] = {}
    """Shard -> progress that a replica in sync has at the least, see `core.cluster.replication`; a
    shard without it has none in sync."""
    on_unhealthy: Mode | None = OFF
    """Whether a master that a quorum of observers finds unhealthy is replaced: OFF, ARMED or AUTO
    of `core.cluster.health`; None: the number of registered machines decides."""
    unsteady: Collection[str] = frozenset()
    """Members that the log has not answered for one timeout without a break: they take no shard
    from a master that answers."""
    awaits_reports: bool = False
    """The controller is new, or the roles were not there a moment ago: members that are not present
    yet may report masters that lost or older roles do not name."""

    @classmethod
    def of(cls, state: ClusterState, **more: Any) -> "ClusterView":
        """Return the view of a state, with more of its fields."""
        return cls(**asdict(state), **more)

    def has_stayed(self, node: str) -> bool:
        """Return whether a member has been present for so long that masters are moved to it only to
        spread them."""
        return self.now_ms - self.since_ms.get(node, self.now_ms) >= self.rebalance_after_ms
