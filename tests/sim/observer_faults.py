"""Faults planted in the observation of masters and in what follows from it: the simulation of
observers must find each of them."""

from __future__ import annotations

from chronos.core.cluster import assignment, health
from chronos.core.cluster.assignment import _Table
from chronos.core.cluster.health import Window
from chronos.workers.cluster import observer
from chronos.workers.cluster.membership import InSyncWatch
from chronos.workers.cluster.observer import HealthObserver
from tests.sim.faults import Change

OBSERVER_FAULTS: dict[str, list[Change]] = {
    "a lone observer causes a failover": [
        (assignment, "is_unhealthy", "len(found) >= OBSERVERS_MIN", "found"),
    ],
    "the quorum is rounded down": [
        (health, "quorum", "-(-2 * observers // 3)", "2 * observers // 3"),
    ],
    "a permission is valid twice": [
        (_Table, "_fail_over", "self.armed.pop(shard, None)", "self.armed.get(shard)"),
    ],
    "a permission does not end": [
        (health, "is_armed", "now_ms < until_ms", "0 < until_ms"),
        (assignment, "is_armed", "now_ms < until_ms", "0 < until_ms"),
    ],
    "a permission of a clock that was ahead is valid until the clock gets there": [
        (health, "is_armed", " <= now_ms + ARMED_MS", ""),
        (assignment, "is_armed", " <= now_ms + ARMED_MS", ""),
    ],
    "without permission an unhealthy master is replaced": [
        (assignment, "may_switch", "return mode == AUTO and", "return mode != OFF and"),
    ],
    "switched off, an unhealthy master is replaced": [
        (assignment, "may_switch", "return mode == AUTO and", "return mode != ARMED and"),
    ],
    "an unhealthy master is replaced again and again": [
        (assignment, "may_switch", " and not was_moved(moved_ms, now_ms)", ""),
    ],
    "the first node that reaches the brokers again takes all shards": [
        (_Table, "_is_steady", "node not in self.view.unsteady", "True"),
    ],
    "a verdict on an earlier master counts": [
        (assignment, "verdicts", "0 < replica.judged == epoch", "replica.judged"),
    ],
    "a probe that was not executed counts as executed": [
        (observer, "_has_moved", "now.pull_offset > probe.offset", "True"),
    ],
    "a probe behind an open transaction counts against the master": [
        (HealthObserver, "_is_readable", "> probe.offset", ">= 0"),
    ],
    "a row of failures is not enough": [
        (
            Window,
            "verdict",
            "if len(latest) == self._rules.in_a_row and not any(latest):",
            "if False:",
        ),
    ],
    "a window without recent observations keeps its verdict": [
        (
            Window,
            "_is_old",
            "return now_ms - self._observed_ms >= self._rules.forgotten_ms",
            "return False",
        ),
        (HealthObserver, "verdict", ">= self.rules.forgotten_ms", "< 0"),
    ],
    "a follower in sync is not preferred at a promotion": [
        (assignment, "choose", "(each.in_sync, each.in_sync and each.steady", "(False, False"),
    ],
    "a replica that is paused counts as in sync": [
        (assignment, "is_in_sync", " and replica.reason is None", ""),
    ],
    "too few followers in sync are not reported": [
        (InSyncWatch, "missing", "max(0, needed - self.counted(shard))", "0"),
    ],
}
