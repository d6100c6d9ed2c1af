"""The steadiness of members, as each node remembers it in case it is the controller: which of them
the log has answered for one timeout without a break, and whether the roles wait for reports.

After an outage of the brokers one node reaches them before the others, and reports from before the
outage may still say that the log answers: a member is steady once every report of one timeout said
so. Only a steady one takes a shard from a living master for no other reason than that the log does
not answer it, that it is unhealthy, or that masters are spread evenly. For one timeout after a
change of controller, or after the roles were lost, reports are awaited: while they know a newer
master of any shard than the roles, `core.cluster.assignment` then decides no shard, except as an
operator asks. A mistake costs time, never a message: the log fences (law 5)."""

from msgspec.structs import replace

from chronos.core.cluster.roles import OK, ClusterView
from chronos.ports import Clock, ClusterSnapshot, steady_ms


class Steadiness:
    """One node's memory of what all members reported. One thread calls `step` and `completed`."""

    def __init__(self, *, timeout_ms: int, clock: Clock) -> None:
        """`timeout_ms`: time without an answer of the log after which a master is replaced."""
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._since_ms: dict[tuple[str, int], int] = {}
        """Process of a member -> since when every report of it said that the log answers it."""
        self._stepped_ms = 0
        self._known: tuple[int, bool] | None = None
        """The epoch of the controller at its last plan, and whether there were roles."""
        self._known_ms = 0
        """Since when, without a pause."""
        self._planned_ms = 0

    def step(self, snapshot: ClusterSnapshot) -> None:
        """Note what the members report; all are counted from here if the reports may be from before
        a pause."""
        now_ms = steady_ms(self._clock)
        if not snapshot.confirmed or now_ms - self._stepped_ms > self._timeout_ms // 2:
            self._since_ms = {}
        self._stepped_ms = now_ms
        answered = [
            (node, member.started_ms)
            for node, member in snapshot.members.items()
            if member.log == OK
        ]
        self._since_ms = {process: self._since_ms.get(process, now_ms) for process in answered}

    def completed(self, view: ClusterView) -> ClusterView:
        """Return the view of the controller with the members that are not steady, and whether lost
        or older roles wait for reports."""
        now_ms = steady_ms(self._clock)
        known = view.controller_epoch, view.roles.are_empty
        if known != self._known or now_ms - self._planned_ms > self._timeout_ms:
            self._known, self._known_ms = known, now_ms
        self._planned_ms = now_ms
        unsteady = frozenset(
            node
            for node, member in view.members.items()
            if now_ms - self._since_ms.get((node, member.started_ms), now_ms) < self._timeout_ms
        )
        awaits_reports = now_ms - self._known_ms < self._timeout_ms
        return replace(view, unsteady=unsteady, awaits_reports=awaits_reports)
