"""The observers of health in simulated nodes: the thread that runs one, its log, and the settings
of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct

from chronos.core.cluster.health import ARMED, AUTO, OFF, HealthRules
from chronos.core.cluster.replication import ASYNC, SYNC, ReplicationRules
from chronos.errors import LogUnavailable
from chronos.ports import Appended, Outgoing
from chronos.workers.cluster.observer import HealthObserver, ProbedTopic
from tests.sim.broker import DELAY
from tests.sim.expectations import Expectation
from tests.sim.log import SimLog
from tests.sim.world import CRASH, Crashed, Finding

if TYPE_CHECKING:
    from tests.sim.node import Process

MAX_LAG_MS = 2_000
"""Lag up to which a replica is in sync: short, so that lagging ones leave the set within a run."""


class HealthSettings(Struct, frozen=True, kw_only=True):
    """The sections `failover` and `replication` of all nodes of a seed."""

    mode: str
    """OFF, ARMED or AUTO. Observers run in all of them: nodes whose settings were not changed yet
    go on to report verdicts."""
    rules: HealthRules
    replication: ReplicationRules
    lost_acknowledgements: float
    """Probability that a probe is written and its acknowledgement lost."""

    @classmethod
    def draw(cls, dice: Random) -> HealthSettings:
        """Draw settings with short times."""
        in_a_row = dice.choice([2, 3, 4])
        window = dice.choice([6, 10])
        return cls(
            mode=dice.choice([OFF, ARMED, ARMED, AUTO, AUTO, AUTO]),
            rules=HealthRules(
                window=window,
                failures=dice.choice([window // 2 + 1, window - 1]),
                in_a_row=in_a_row,
                every_ms=dice.choice([1_000, 2_000]),
                timeout_ms=dice.choice([250, 500]),
            ),
            replication=ReplicationRules(
                mode=dice.choice([ASYNC, SYNC]),
                min_in_sync=dice.choice([1, 2]),
                max_lag_ms=MAX_LAG_MS,
            ),
            lost_acknowledgements=dice.choice([0.0, 0.05]),
        )

    @property
    def soonest_ms(self) -> int:
        """Shortest time in which an observer finds a master unhealthy that it did not observe
        before."""
        failures = min(self.rules.in_a_row, self.rules.failures)
        return ((failures - 1) * self.rules.slots + 1) * self.rules.timeout_ms

    @property
    def found_ms(self) -> int:
        """Longest time in which an observer that observes it finds a master unhealthy that does
        nothing.

        Up to one interval passes until the next look, which may still see an earlier move; then the
        failures follow."""
        return (
            self.rules.in_a_row + 1
        ) * self.rules.slots * self.rules.timeout_ms + 2 * self.rules.timeout_ms


class ProbeLog(SimLog):
    """The log's client of an observer: the checker learns of each probe that it writes."""

    def append(self, records: Sequence[Outgoing], timeout_s: float) -> list[Appended]:
        observer = self.caller
        assert isinstance(observer, ObserverThread)
        dice, settings = observer.dice, observer.settings
        deadline_ms = self.world.now_ms + int(timeout_s * 1_000)
        while self._is_unanswered(records) and self.world.now_ms < deadline_ms:
            self.caller.sleep(settings.rules.timeout_ms)
        appended = []
        for record in records:
            (written,) = super().append([record], timeout_s)
            place = self.brokers.topics[DELAY][written.partition]
            observer.node.checker.expect(place, written.offset, Expectation(verb="probe"))
            appended.append(written)
        if self.world.faulty and dice.random() < settings.lost_acknowledgements:
            raise LogUnavailable("the acknowledgement of a probe is lost")
        return appended

    def _is_unanswered(self, records: Sequence[Outgoing]) -> bool:
        return self.is_cut or any(
            self.is_silent(self.brokers.topics[DELAY][record[4]]) for record in records
        )


class ObserverThread:
    """The thread of one process's observer. See `log.Caller`."""

    def __init__(self, process: Process, settings: HealthSettings) -> None:
        assert process.membership is not None
        self.process = process
        self.node = process.node
        self.world = process.world
        self.settings = settings
        self.dice = process.node.health_dice
        self.name = f"{self.node.name}/observer"
        self.paused_ms = 0
        """Until when the thread does not run, although the others of its process do."""
        self.log = ProbeLog(self, self.node.brokers)
        self.observer = HealthObserver(
            ProbedTopic(
                log=self.log,
                appender=self.log,
                topic=DELAY,
                shards=self.node.settings.shards,
            ),
            settings.rules,
            clock=self.node.clock,
            snapshot=process.membership.snapshot,
            position_of=process.look,
        )
        self._run_after(settings.rules.timeout_ms)

    def pause(self, wait_ms: int) -> None:
        self.world.trace(f"{self.name} pauses for {wait_ms}")
        self.paused_ms = self.world.now_ms + wait_ms

    def _run_after(self, wait_ms: int) -> None:
        self.world.after(wait_ms, self._run)

    def _run(self) -> None:
        process, now_ms = self.process, self.world.now_ms
        if process.dead or process.stopping:
            return
        held_ms = max(self.node.frozen_ms, self.paused_ms)
        if held_ms > now_ms:
            # In parts, because a pause ends early when all faults do.
            self._run_after(min(held_ms - now_ms, self.settings.rules.timeout_ms))
            return
        try:
            self.observer.step()
        except Crashed:
            return
        except Finding:
            raise
        except Exception as error:
            raise Finding(CRASH, f"{self.name} failed: {error!r}") from error
        self._run_after(self.settings.rules.timeout_ms)

    def touch(self, where: str) -> None:
        """A port was called: the process may freeze or die."""
        self.process.touch(where)

    def misused(self, text: str) -> None:
        raise Finding(CRASH, f"{self.name}: {text}")

    def trimmed(self, text: str) -> None:
        raise Finding(CRASH, f"{self.name} reads nothing: {text}")

    def sleep(self, wait_ms: int) -> None:
        """Wait inside a call while all other threads run."""
        self.world.pass_time(wait_ms)
        self.process.touch("waited")

    def nudge(self) -> None:
        """It waits for no records."""
