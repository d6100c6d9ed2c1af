"""The observer of masters: checks in each period (`HealthRules.every_ms`) whether each shard's
master works, end to end. The verdicts are computed by `core.cluster.health`, and what follows from
them is decided by the controller (`core.cluster.assignment`).

A master whose cursor or pull position has moved since the last observation works, and costs nothing
more. To one that has not, a record with the action `probe` is sent, which is staged, counted in a
progress record and never delivered; after a timeout, it must have passed through the shard, or the
shard must have moved in another way. Probes of other observers move the shard too: a shard without
messages gets usually one probe in a period, however many nodes observe it. Positions are read from
this node's own replica, so a node judges the shards that it holds.

A probe that the master could not read yet, because a producer has an open transaction before it,
says nothing about the master. While a new master takes over, its failures do not count, but for no
longer than TAKE_OVER_MS."""

from collections.abc import Callable, Mapping

import structlog
from msgspec import Struct

from chronos.core.cluster.health import HealthRules, Observations, Verdict
from chronos.core.cluster.roles import Member
from chronos.core.shard.wheel import Position
from chronos.errors import Retry
from chronos.ports import Appender, Clock, ClusterSnapshot, Outgoing, TopicLog, steady_ms
from chronos.workers.replica.state import ReplicaState

log = structlog.get_logger("chronos.cluster")

APPEND_S = 15.0
"""How long the brokers may take to acknowledge a probe."""

TAKE_OVER_MS = 30_000
"""How long a new master may report that it takes over before failures count: as long as it takes to
find that a master is stuck."""

PROBE_HEADERS: Mapping[str, bytes] = {"chronos-action": b"probe"}


class MasterPosition(Struct, frozen=True, kw_only=True):
    """The position of a shard's master in its work, as one replica shows it."""

    cursor: Position
    pull_offset: int


class _Probe(Struct, frozen=True, kw_only=True):
    """A probe that is on its way through its shard."""

    shard: int
    epoch: int
    offset: int
    """Its offset in the delay partition."""
    before: MasterPosition


class ProbedTopic(Struct, frozen=True, kw_only=True):
    """The delay topic, to whose partitions probes are written."""

    log: TopicLog
    appender: Appender
    """Writes the probes, and nothing else: one that is not acknowledged in time is discarded with
    all that its appender holds."""
    topic: str
    shards: int


class HealthObserver:
    """One node's observations of all masters. One thread calls `step`; any thread may call
    `verdict`."""

    def __init__(
        self,
        probed: ProbedTopic,
        rules: HealthRules,
        *,
        clock: Clock,
        snapshot: Callable[[], ClusterSnapshot],
        position_of: Callable[[int, str], MasterPosition | None],
    ) -> None:
        """`position_of`: returns the position of a shard's master as this node's replica shows it;
        None: the replica does not show it now. Called with the shard and the master's node."""
        self.rules = rules
        self._log = probed.log
        self._appender = probed.appender
        self._shards = probed.shards
        self._delay_topic = probed.topic
        self._clock = clock
        self._snapshot = snapshot
        self._position_of = position_of
        self._observations = Observations(rules)
        self._slots = rules.slots
        self._steps = 0
        self._probes: list[_Probe] = []
        self._seen: dict[int, tuple[int, int]] = {}
        """Shard -> the role epoch of its master, and when this observer first saw it."""
        self._before: dict[int, tuple[int, MasterPosition]] = {}
        """Shard -> role epoch and position of the last observation."""
        self._verdicts: Mapping[int, Verdict] = {}
        self._stepped_ms = steady_ms(self._clock)
        self._is_unwritten = False
        """The last probes could not be written: only the first failure is logged."""
        self._closed: frozenset[int] = frozenset()
        """Partitions that took no records when probes were last refused: they are sent none until
        they take some."""

    def verdict(self, shard: int) -> Verdict | None:
        """Return the current verdict on the shard's master; None without one."""
        if steady_ms(self._clock) - self._stepped_ms >= self.rules.forgotten_ms:
            return None  # the thread of the observer hangs
        return self._verdicts.get(shard)

    def step(self) -> None:
        """1. Check which probes have passed, 2. observe the next shards, 3. judge. Call it once in
        each timeout."""
        snapshot = self._snapshot()
        roles, now_ms = snapshot.roles, steady_ms(self._clock)
        shards = {} if roles is None else roles.shards
        epochs = {n: (given.epoch, given.master) for n, given in shards.items() if given.master}
        self._seen = {
            shard: known
            if (known := self._seen.get(shard, (0, 0)))[0] == epoch
            else (epoch, now_ms)
            for shard, (epoch, _) in epochs.items()
        }
        self._settle(epochs, snapshot)
        self._observe(epochs)
        self._judge()

    def _settle(self, masters: Mapping[int, tuple[int, str]], snapshot: ClusterSnapshot) -> None:
        probes, self._probes = self._probes, []
        still = []
        for probe in probes:
            epoch, master = masters.get(probe.shard, (0, ""))
            now = self._position_of(probe.shard, master) if epoch == probe.epoch else None
            if now is None:
                continue
            if _has_moved(probe, now):
                self._add(probe.shard, epoch, now, healthy=True)
            elif not self._takes_over(probe.shard, snapshot.members.get(master)):
                still.append((probe, master))
        for probe, master in still:
            try:
                is_readable = self._is_readable(probe)
            except Retry:
                return  # Each further request could take as long again.
            # The request may have taken seconds, in which the master may have moved.
            now = self._position_of(probe.shard, master)
            if is_readable and now is not None:
                self._add(probe.shard, probe.epoch, now, healthy=_has_moved(probe, now))

    def _takes_over(self, shard: int, master: Member | None) -> bool:
        """Return whether a new master reports that it is on the way to its role, and may be."""
        replica = None if master is None else master.replicas.get(shard)
        is_new = steady_ms(self._clock) - self._seen[shard][1] < TAKE_OVER_MS
        return is_new and replica is not None and replica.role != ReplicaState.MASTER

    def _is_readable(self, probe: _Probe) -> bool:
        """Return whether a reader of committed records gets the probe. Raises Retry."""
        return self._log.stable_end(self._delay_topic, probe.shard) > probe.offset

    def _observe(self, masters: Mapping[int, tuple[int, str]]) -> None:
        """Observe the shards of this step; a probe is sent to those that have not moved, all in one
        request."""
        self._steps += 1
        if self._closed and self._steps % self._slots == 0:
            self._find_closed()
        still = []
        for shard in range(self._steps % self._slots, self._shards, self._slots):
            epoch, master = masters.get(shard, (0, ""))
            now = self._position_of(shard, master) if epoch else None
            if now is None:
                self._before.pop(shard, None)
                continue
            known, before = self._before.get(shard, (0, now))
            if known == epoch and now != before:
                self._add(shard, epoch, now, healthy=True)
            elif shard not in self._closed:
                still.append((shard, epoch, now))
        if not still:
            return
        records: list[Outgoing] = [
            (self._delay_topic, None, None, PROBE_HEADERS, shard) for shard, _, _ in still
        ]
        try:
            appended = self._appender.append(records, APPEND_S)
        except Retry as error:
            if not self._is_unwritten:
                log.warning("no probe could be written", why=str(error))
            self._is_unwritten = True
            # One partition that takes nothing must not keep the probes of the others from being
            # written.
            self._find_closed()
            return  # the log does not take it: that says nothing about a master
        self._is_unwritten = False
        self._probes = [
            _Probe(shard=shard, epoch=epoch, offset=written.offset, before=before)
            for (shard, epoch, before), written in zip(still, appended, strict=True)
        ]

    def _find_closed(self) -> None:
        try:
            info = self._log.describe([self._delay_topic])[self._delay_topic]
        except Retry:
            return
        self._closed = frozenset() if info is None else info.closed

    def _add(self, shard: int, epoch: int, now: MasterPosition, *, healthy: bool) -> None:
        self._observations.add(shard, epoch, healthy=healthy, now_ms=steady_ms(self._clock))
        self._before[shard] = (epoch, now)

    def _judge(self) -> None:
        now_ms, before = steady_ms(self._clock), self._verdicts
        verdicts = {n: self._observations.verdict(n, now_ms) for n in range(self._shards)}
        self._verdicts = {n: verdict for n, verdict in verdicts.items() if verdict is not None}
        self._stepped_ms = now_ms
        for shard, verdict in self._verdicts.items():
            known = before.get(shard)
            if not verdict.healthy and known is not None and known.healthy:
                log.warning("master unhealthy", shard=shard, epoch=verdict.epoch)
            elif verdict.healthy and known is not None and not known.healthy:
                log.info("master healthy again", shard=shard, epoch=verdict.epoch)


def _has_moved(probe: _Probe, now: MasterPosition) -> bool:
    """Return whether the shard has moved since the probe was sent, or passed it."""
    return now.pull_offset > probe.offset or now != probe.before
