"""The claim of a node to lead a shard, judged by the last progress record alone.

Keeps its part of law 5: a node that lost the shard to another one does not fence that one again. The log's fencing keeps the
law in any case; the claim avoids a pointless exchange of leaders.
"""

import structlog
from msgspec import Struct

from chronos.core.codec import State
from chronos.errors import Deposed, LogUnavailable, RoleStale
from chronos.workers.replica_state import Assignment

log = structlog.get_logger("chronos.shard")

FOREIGN_SILENCE_MS = 90_000
"""A standalone node takes over from another one after this long without a progress record: one and a half heartbeats."""


class Claim(Struct, frozen=True, kw_only=True):
    """One node's claim to one shard."""

    shard: int
    node: str
    instance: str
    """Id of this node's data directory."""
    led_epoch: int | None
    """The log epoch of this process's last leadership; None before the first."""

    def wait_ms(self, state: State, assignment: Assignment, now_ms: int) -> int:
        """Return the time after which this node may lead: 0 for at once. Raises RoleStale, Deposed."""
        if state.instance in ("", self.instance):
            return 0
        if assignment.epoch is not None:
            if state.role_epoch >= assignment.epoch:
                raise RoleStale(
                    f"node {state.node} was master of shard {self.shard} with role epoch {state.role_epoch}, and this"
                    f" node was given {assignment.epoch}: it waits for a later role"
                )
            return 0
        if self.led_epoch is not None and state.log_epoch > self.led_epoch:
            raise Deposed(
                f"node {state.node} (instance {state.instance}) took over shard {self.shard} from this one:"
                " two standalone nodes serve the same cluster. Stop one of them, or give each its own `cluster`"
                " and topics."
            )
        left_ms = state.progress_ms + FOREIGN_SILENCE_MS - now_ms
        if left_ms <= 0:
            log.warning("taking over from a silent node", shard=self.shard, node=state.node)
        return max(0, left_ms)

    def waiting(self, state: State, wait_ms: int) -> LogUnavailable:
        """Return the reason for the wait, for people."""
        return LogUnavailable(
            f"node {state.node} (instance {state.instance}) was master of shard {self.shard} until"
            f" {FOREIGN_SILENCE_MS - wait_ms} ms ago; this node takes over once it was silent for"
            f" {FOREIGN_SILENCE_MS // 1_000} s"
        )
