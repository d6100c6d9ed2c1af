"""Faults planted in the observation of masters and in what follows from it: the simulation of
observers must find each of them."""

from __future__ import annotations

from tests.sim.planting import Change, Faults

OBSERVER_FAULTS: Faults = {
    "a lone observer causes a failover": [
        Change("len(healthy) >= OBSERVERS_MIN", "healthy", "is_unhealthy")
    ],
    "the quorum is rounded down": [Change("-(-2 * observers // 3)", "2 * observers // 3")],
    "a permission is valid twice": [Change("self.armed.pop(shard, None)", "self.armed.get(shard)")],
    "a permission does not end": [Change("now_ms < until_ms", "0 < until_ms", "is_armed")],
    "a permission of a clock that was ahead is valid until the clock gets there": [
        Change(" <= now_ms + ARMED_MS", "")
    ],
    "without permission an unhealthy master is replaced": [
        Change("return mode == AUTO and", "return mode != OFF and")
    ],
    "switched off, an unhealthy master is replaced": [
        Change("return mode == AUTO and", "return mode != ARMED and")
    ],
    "an unhealthy master is replaced again and again": [
        Change(" and not was_moved(moved_ms, now_ms)", "")
    ],
    "the first node that reaches the brokers again takes all shards": [
        Change("node not in self.view.unsteady", "True")
    ],
    "a verdict on an earlier master counts": [
        Change("0 < replica.judged == epoch", "replica.judged")
    ],
    "a probe that was not executed counts as executed": [
        Change("now.pull_offset > probe.offset", "True")
    ],
    "a probe behind an open transaction counts against the master": [
        Change("> probe.offset", ">= 0", "_is_readable")
    ],
    "a row of failures is not enough": [
        Change("if len(latest) == self._rules.in_a_row and not any(latest):", "if False:")
    ],
    "a window without recent observations keeps its verdict": [
        Change("return now_ms - self._observed_ms >= self._rules.forgotten_ms", "return False"),
        Change(">= self.rules.forgotten_ms", "< 0"),
    ],
    "a follower in sync is not preferred at a promotion": [
        Change("(candidate.in_sync, candidate.in_sync and candidate.steady", "(False, False")
    ],
    "a replica that is paused counts as in sync": [
        Change(" and replica.reason is None", "", "is_in_sync")
    ],
    "too few followers in sync are not reported": [
        Change("max(0, needed - self.counted(shard))", "0")
    ],
}
