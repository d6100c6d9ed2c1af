"""The leadership of a shard: the role that a replica is assigned (`Assignment`), and when it may
lead (`Claim`).

Keeps its part of laws 3 and 5: a replica leads only under a role that is later than every role of
another node in the progress log, and a standalone node only after another one was silent. Earlier
masters are fenced by `phases`."""

from typing import Literal

import structlog
from msgspec import Struct

from chronos.core.shard.codec import State
from chronos.errors import Deposed, LogUnavailable, RoleStale

log = structlog.get_logger("chronos.shard")

FOREIGN_SILENCE_MS = 90_000
"""A standalone node takes over from another one after this long without a progress record: one and
a half heartbeats."""


class Assignment(Struct, frozen=True, kw_only=True):
    """The role that the controller gives to a replica at the moment."""

    kind: Literal["master", "follower", "none"]
    """`none`: this node does not hold the shard."""
    epoch: int | None = None
    """The role epoch of the shard as of the roles that were read; 0: they know no master, or none
    were read. None: the node is standalone."""
    confirmed: bool = True
    """The coordinator confirms the assignment now. False: continue, but begin no leadership."""
    predecessor_active: bool = False
    """The previous master may still be finishing its step; do not fence it yet."""

    def continues(self, other: "Assignment | None") -> bool:
        """Return whether a leadership that began under `other` goes on.

        It is still assigned, or the roles are older than it: the coordinator lost them, was
        restored to an older state, or gave none to this session yet."""
        if other is None:
            return False
        if self.epoch is not None and other.epoch is not None and self.epoch < other.epoch:
            return True
        return self.kind == other.kind and self.epoch == other.epoch


STANDALONE = Assignment(kind="master")
"""The assignment of every replica of a standalone node."""


class Claim:
    """The claim of one node to the leadership of one shard. It depends on the last leadership of
    this process."""

    def __init__(self, *, shard: int, node: str, instance: str) -> None:
        """`instance`: id of this node's data directory."""
        self.shard = shard
        self.node = node
        self.instance = instance
        self._led_epoch: int | None = None
        """The log epoch of this process's last leadership; None before the first."""
        self._ended: str | None = None
        """Why that leadership ended, for people; None: no error ended it."""

    def began(self, log_epoch: int) -> str | None:
        """Note that a leadership of this process began; return why the one before it ended, for
        people, and None if no error ended it."""
        ended, self._ended = self._ended, None
        self._led_epoch = log_epoch
        return ended

    def ended(self, why: str) -> None:
        """Note the error that ended a leadership of this process, for people."""
        self._ended = why

    def wait_ms(self, state: State, assignment: Assignment, now_ms: int) -> int:
        """Return the time after which this node may lead (ms): 0 for at once. Raises RoleStale,
        Deposed."""
        is_own = state.instance in ("", self.instance)
        if assignment.epoch is not None:
            # After a restart this node may take its own role again, and no earlier one.
            if state.role_epoch >= assignment.epoch + is_own:
                raise RoleStale(
                    f"node {state.node} was master of shard {self.shard} with role epoch "
                    f"{state.role_epoch}, and this node was given {assignment.epoch}: it waits "
                    "for a later role"
                )
            return 0
        if is_own:
            return 0
        if self._led_epoch is not None and state.log_epoch > self._led_epoch:
            why = "" if self._ended is None else f" (here the leadership ended: {self._ended})"
            raise Deposed(
                f"node {state.node} (instance {state.instance}) took over shard {self.shard} from "
                f"this one{why}: two standalone nodes serve the same cluster. Stop one of them, or "
                "give each its own `cluster` and topics."
            )
        left_ms = state.progress_ms + FOREIGN_SILENCE_MS - now_ms
        if left_ms <= 0:
            log.warning("taking over from a silent node", shard=self.shard, node=state.node)
        return max(0, left_ms)

    def waiting(self, state: State, wait_ms: int) -> LogUnavailable:
        """Return the error that names the reason for the wait, for people."""
        return LogUnavailable(
            f"node {state.node} (instance {state.instance}) was master of shard {self.shard} until"
            f" {FOREIGN_SILENCE_MS - wait_ms} ms ago; this node takes over once it was silent for"
            f" {FOREIGN_SILENCE_MS // 1_000} s"
        )
