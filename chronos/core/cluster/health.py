"""The health of masters: the window of one observer, the quorum of all observers, and the
conditions under which an unhealthy master is replaced.

The rules HA-* of DDMQ's NameServer failover (docs/contributing/conformance.md). In each period an
observer adds at most one observation of the master of each shard that it holds. A verdict names its
role epoch, so a new master starts with a window of its own. The observations are made by
`workers.cluster.observer`, and `assignment` replaces the master. Safety does not depend on any of
this (law 5).

    step                         condition
    unhealthy for one observer   7 of its latest 10 observations failed, or all of the latest 5
    unhealthy for a quorum       two thirds of the observing machines, rounded up; at least 2 machines
    replacement permitted        the mode is `auto`, and the shard was not moved for this within 5 min;
                                 or it is not `off`, and an operator has permitted it (`armed`)
    new role epoch               there is a candidate; the old master is told to follow
"""  # noqa: E501

from collections import deque
from collections.abc import Iterable
from operator import itemgetter
from typing import Final, Literal

from msgspec import Struct

Mode = Literal["off", "armed", "auto"]
"""A mode of `failover.on_unhealthy`."""

OFF: Final = "off"
ARMED: Final = "armed"
AUTO: Final = "auto"

AUTO_NODES_MIN = 3
"""Least number of machines of registered nodes at which the mode is AUTO if none is set: with two
machines, both would have to find the master unhealthy, also the one that it runs on."""

UNHEALTHY = "unhealthy by its probes"
NO_CANDIDATE = "unhealthy by its probes; no replica can take over"
ARM_REFUSED = "arm refused"
"""Reasons in the history of roles."""

OBSERVERS_MIN = 2
"""A lone observer never causes a failover."""

ARMED_MS = 15_000
"""Time for which an operator's permission is valid."""

MOVED_MS = 300_000
"""Time after a move for ill health in which the shard is not moved for it again without a
permission: if another master does not help, the trouble is not the master's."""


class HealthRules(Struct, frozen=True, kw_only=True):
    """The constants of an observer."""

    window: int = 10
    """Observations that count."""
    failures: int = 7
    """Failed ones among them that make a verdict."""
    in_a_row: int = 5
    """Latest ones that make a verdict if all of them failed."""
    every_ms: int = 5_000
    """Time between two observations of a shard."""
    timeout_ms: int = 500
    """Time for a probe to pass through its shard."""

    @property
    def slots(self) -> int:
        """The shards are spread over so many steps, one a time-out: no shard is observed more often
        than every `every_ms`."""
        return -(-self.every_ms // self.timeout_ms)

    @property
    def forgotten_ms(self) -> int:
        """Time without an observation after which a window is forgotten, before it is
        judged."""
        return -(-self.window // 2) * self.every_ms


class Window:
    """The latest observations of a master by one observer; those not made yet count as healthy."""

    def __init__(self, rules: HealthRules) -> None:
        self._rules = rules
        self._healthy: deque[bool] = deque(maxlen=rules.window)
        self._observed_ms = 0

    def add(self, *, healthy: bool, now_ms: int) -> None:
        """Add an observation; the first one counts as well."""
        if self._is_old(now_ms):
            self._healthy.clear()
        self._healthy.append(healthy)
        self._observed_ms = now_ms

    def verdict(self, now_ms: int) -> bool | None:
        """Return whether the master is healthy; None without an observation that is recent
        enough."""
        if not self._healthy or self._is_old(now_ms):
            return None
        latest = list(self._healthy)[-self._rules.in_a_row :]
        if len(latest) == self._rules.in_a_row and not any(latest):
            return False
        return self._healthy.count(False) < self._rules.failures

    def _is_old(self, now_ms: int) -> bool:
        return now_ms - self._observed_ms >= self._rules.forgotten_ms


class Verdict(Struct, frozen=True, kw_only=True):
    """The verdict of one observer on the master with this role epoch."""

    epoch: int
    healthy: bool


class Observations:
    """The windows of one observer."""

    def __init__(self, rules: HealthRules) -> None:
        self._rules = rules
        self._windows: dict[int, tuple[int, Window]] = {}
        """Shard -> role epoch and window."""

    def add(self, shard: int, epoch: int, *, healthy: bool, now_ms: int) -> None:
        """Add an observation of the master with this role epoch; another epoch begins another
        window."""
        known, window = self._windows.get(shard, (0, Window(self._rules)))
        if known != epoch:
            window = Window(self._rules)
            self._windows[shard] = (epoch, window)
        window.add(healthy=healthy, now_ms=now_ms)

    def verdict(self, shard: int, now_ms: int) -> Verdict | None:
        """Return the verdict on the shard's master; None without a recent observation."""
        epoch, window = self._windows.get(shard, (0, None))
        healthy = None if window is None else window.verdict(now_ms)
        return None if healthy is None else Verdict(epoch=epoch, healthy=healthy)


def quorum(observers: int) -> int:
    """Return how many of so many observers must find a master unhealthy: two thirds, rounded up, in
    integers."""
    return -(-2 * observers // 3)


def is_unhealthy(verdicts: Iterable[bool]) -> bool:
    """Return whether a quorum of observers finds the master unhealthy. `verdicts`: whether each
    observer, a machine, finds it healthy (`roles.verdicts`). A machine without a verdict does not
    count as an observer: a missing report does not count against a master."""
    healthy = list(verdicts)
    return len(healthy) >= OBSERVERS_MIN and healthy.count(False) >= quorum(len(healthy))


def armed_until(asked_ms: int, now_ms: int) -> int | None:
    """Return the end of a permission that an operator gave at `asked_ms` (epoch ms); None if it is
    over."""
    until_ms = min(asked_ms, now_ms) + ARMED_MS
    return until_ms if now_ms < until_ms else None


def is_armed(until_ms: int, now_ms: int) -> bool:
    """Return whether a permission that ends at `until_ms` is valid. If it ends later than a
    permission given now, it was given by a clock that was ahead, and is not valid."""
    return now_ms < until_ms <= now_ms + ARMED_MS


def mode_of(setting: Mode | None, registered: int) -> Mode:
    """Return the mode in force. `setting`: None if none is set. `registered`: machines of the nodes
    with a place, whether they are present or not."""
    if setting is not None:
        return setting
    return AUTO if registered >= AUTO_NODES_MIN else OFF


def was_moved(moved_ms: int | None, now_ms: int) -> bool:
    """Return whether an unhealthy master was replaced at `moved_ms`, less than MOVED_MS ago. A time
    in the future is of a clock that was ahead, and does not count."""
    return moved_ms is not None and 0 <= now_ms - moved_ms < MOVED_MS


def may_switch(
    mode: str, armed_until_ms: int | None, now_ms: int, moved_ms: int | None = None
) -> bool:
    """Return whether an unhealthy master may be replaced. `armed_until_ms`: the end of an
    operator's permission. `moved_ms`: when the shard was last moved for this reason."""
    if armed_until_ms is not None and is_armed(armed_until_ms, now_ms):
        return mode != OFF
    return mode == AUTO and not was_moved(moved_ms, now_ms)


class Candidate(Struct, frozen=True, kw_only=True):
    """A replica that may take a shard over."""

    node: str
    applied: int | None
    """Offset in the progress partition after the last record applied; None: not known."""
    masters: int = 0
    """Shards that its node is master of."""
    in_sync: bool = False
    """It works and lags by no more than `ReplicationRules.max_lag_ms`."""
    steady: bool = True
    """The log has answered its node for one timeout without a break."""


def choose(candidates: Iterable[Candidate]) -> str | None:
    """Return the best candidate; None if no progress is known.

    Candidates in sync come first, and of these the steady ones; then the most advanced, then the
    one with the fewest masters, then the first in the order of `candidates`."""
    known = [
        (
            candidate.in_sync,
            candidate.in_sync and candidate.steady,
            candidate.applied,
            -candidate.masters,
            candidate.node,
        )
        for candidate in candidates
        if candidate.applied is not None
    ]
    return max(known, key=itemgetter(0, 1, 2, 3))[4] if known else None
