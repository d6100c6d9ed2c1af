"""The tenure of a master: how old its last commit is, and whether its clock can be trusted.

Keeps its part of laws 2 (never early), 3 (exactly once) and 5 (one committing master): Kafka fences
a master only as long as it remembers the transactional id, and another node takes over after a long
silence. So the time since the last commit is measured by three clocks: the wall clock, the boot
clock, and the broker's. Where one of them shows too long a time, or they differ by more than
SURE_MS, the leadership ends; where they differ by less, but more than CLOCK_TOLERANCE_MS, nothing
is delivered until they agree."""

from chronos.errors import ClockDisagrees, ProducerLost
from chronos.ports import CLOCK_TOLERANCE_MS, Clock

TENURE_MS = 80_000
"""A leadership ends after this time without a commit: after 90 s of silence another standalone node
takes over, and a commit comes at the latest after `master.HEARTBEAT_ALONE_MS`."""

SURE_MS = 30_000
"""Time in which the brokers forget no transactional id: they keep it for minutes at least
(`transactional.id.expiration.ms`, 7 days by default). After an abort a master goes on only if its
last commit is younger, because the client does not tell whether it had to take a new producer id.
A clock that is wrong or was set by more cannot show how old the last commit is."""


class Tenure:
    """The time since the last commit of one leadership, and the trust in the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.committed_ms = 0
        """When the last step was committed, by this machine's clock (epoch ms); 0: none was."""
        self.clock_agrees = False
        """The broker's clock and this machine's agreed at the last commit, and this machine's was
        not set since."""
        self._committed_stepped_ms = 0
        """`Clock.stepped_ms` at the last commit."""
        self._appended_ms: int | None = None
        """The broker's timestamp of its progress record (epoch ms)."""
        self._trusted_stepped_ms = clock.stepped_ms()
        """`Clock.stepped_ms` when the clock was last trusted."""

    @property
    def silent_ms(self) -> int:
        """Time since the last commit in ms, by the wall clock or by the boot clock, whichever shows
        more."""
        since_ms = self._clock.now_ms() - self.committed_ms
        return max(since_ms, since_ms - self._set_ms)

    @property
    def _set_ms(self) -> int:
        """By how much the clock was set since the last commit."""
        return self._clock.stepped_ms() - self._committed_stepped_ms

    def committed(self, appended_ms: int) -> None:
        """Note a commit, whose progress record has this timestamp of the broker (epoch ms)."""
        self.clock_agrees = True
        self.committed_ms, self._appended_ms = self._clock.now_ms(), appended_ms
        self._committed_stepped_ms = self._clock.stepped_ms()

    def check(self) -> None:
        """Raise ProducerLost if another node may have been master since the last commit: Kafka
        fences this one only while it remembers the transactional id."""
        if self.silent_ms >= TENURE_MS:
            raise ProducerLost(
                f"nothing was committed for {self.silent_ms // 1_000} s, and another node may have "
                "been master meanwhile"
            )
        if abs(self._set_ms) > SURE_MS:
            raise ProducerLost(
                f"this machine's clock was set by {self._set_ms} ms, so that the time since the "
                "last commit is not known, and another node may have been master meanwhile; check "
                "NTP"
            )

    def check_appended(self, timestamp_ms: int) -> None:
        """Raise ProducerLost if the broker's clock shows at a progress record that another node had
        the time to be master."""
        since_ms = 0 if self._appended_ms is None else timestamp_ms - self._appended_ms
        if since_ms > TENURE_MS:
            raise ProducerLost(
                f"by the broker's clock nothing was committed for {since_ms // 1_000} s, and "
                "another node may have been master meanwhile. The step was aborted"
            )

    def clock_was_set(self) -> bool:
        """Return whether the wall clock was set since it was last trusted."""
        return abs(self._clock.stepped_ms() - self._trusted_stepped_ms) > CLOCK_TOLERANCE_MS

    def distrust_clock(self) -> None:
        """Require a new comparison with the broker's clock."""
        self.clock_agrees = False
        self._trusted_stepped_ms = self._clock.stepped_ms()

    def check_clock(self, produced_ms: int, timestamp_ms: int) -> None:
        """Law 2: the broker's timestamp must lie between produce and report, within
        CLOCK_TOLERANCE_MS. Raises ClockDisagrees, or ProducerLost where the difference may hide how
        old the last commit is."""
        reported_ms = self._clock.now_ms()
        early_ms, late_ms = produced_ms - timestamp_ms, timestamp_ms - reported_ms
        was_set = self.clock_was_set()
        if max(early_ms, late_ms) <= CLOCK_TOLERANCE_MS and not was_set:
            return
        away_ms = max(late_ms, 0) - max(early_ms, 0)
        if self.committed_ms:
            self.check()
            if max(early_ms, late_ms) > SURE_MS:
                raise ProducerLost(
                    f"the broker's clock is {away_ms} ms away from this machine's, so that the "
                    "time since the last commit is not known, and another node may have been "
                    "master meanwhile. The step was aborted; check NTP on both"
                )
        self.distrust_clock()
        if was_set:
            raise ClockDisagrees(
                "this machine's clock was set during a step, which was aborted; check NTP",
                aborted=True,
            )
        raise ClockDisagrees(
            f"the broker's clock is {away_ms} ms away from this machine's. The step was aborted "
            "and nothing is delivered until they agree; check NTP on both",
            aborted=True,
        )
