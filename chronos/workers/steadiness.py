"""What a controller has to see for some time before it moves a shard, and remembers from one plan to the next.

After an outage of the brokers one node reaches them before the others, and reports from before may still say that all is well: a member
is steady once every report of one timeout said that the log answers it. Roles that are lost are not decided anew before the members
could report which of them leads.
"""

from msgspec.structs import replace

from chronos.core.roles import OK, ClusterView
from chronos.ports import Clock, ClusterSnapshot, steady_ms


class Steadiness:
    """One node's memory of the reports of all members. One thread calls `step` and `completed`."""

    def __init__(self, *, timeout_ms: int, clock: Clock) -> None:
        """`timeout_ms`: time without an answer of the log after which a master is replaced."""
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._since_ms: dict[tuple[str, int], int] = {}
        """Process of a member -> since when every report of it said that the log answers it."""
        self._stepped_ms = 0
        self._empty_ms: int | None = None
        """When this controller found no roles; None if there are some."""
        self._planned_ms = 0

    def step(self, snapshot: ClusterSnapshot) -> None:
        """Note what the members report; all are counted from here if the reports may be from before a pause."""
        now_ms = steady_ms(self._clock)
        if not snapshot.confirmed or now_ms - self._stepped_ms > self._timeout_ms // 2:
            self._since_ms = {}
        self._stepped_ms = now_ms
        answered = [(node, each.started_ms) for node, each in snapshot.members.items() if each.log == OK]
        self._since_ms = {process: self._since_ms.get(process, now_ms) for process in answered}

    def completed(self, view: ClusterView) -> ClusterView:
        """Return the view of the controller with the members that are not steady, and whether lost roles wait for reports."""
        now_ms = steady_ms(self._clock)
        if not view.roles.are_empty:
            self._empty_ms = None
        elif self._empty_ms is None or now_ms - self._planned_ms > self._timeout_ms:
            self._empty_ms = now_ms
        self._planned_ms = now_ms
        unsteady = frozenset(
            node
            for node, member in view.members.items()
            if now_ms - self._since_ms.get((node, member.started_ms), now_ms) < self._timeout_ms
        )
        awaits_reports = self._empty_ms is not None and now_ms - self._empty_ms < self._timeout_ms
        return replace(view, unsteady=unsteady, awaits_reports=awaits_reports)
