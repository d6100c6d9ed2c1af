"""Who is master of which shard: what nodes say of themselves, and what the controller makes of it.

Pure: `plan(view)` is a function of values. Safety never depends on it (the log fences); it keeps liveness, that every
shard has one master, and spares movement.
"""

from collections.abc import Mapping

from msgspec import Struct


class Replica(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node says of its replica of one shard."""

    applied: int | None = None
    """Offset in the progress partition behind the last record applied; None: not known yet, which never wins."""
    pull_offset: int = 0
    """Offset in the delay partition behind the last record executed."""
    role_epoch: int = 0
    """The greatest role epoch seen in the progress log."""
    log_epoch: int = 0
    """The greatest log epoch seen in the progress log."""
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
    replicas: Mapping[int, Replica] = {}


class Assignment(Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    """The greatest `Replica.applied` the controller has heard of for this shard."""


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
    shards: Mapping[int, Assignment] = {}
    drained: tuple[str, ...] = ()
    """Nodes that are to be master of nothing, until an operator says otherwise."""
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


class View(Struct, frozen=True, kw_only=True):
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
