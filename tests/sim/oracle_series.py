"""The rhythm of a series, as docs/reference/headers.md and docs/how-to/repeat.md describe it. Part
of the oracle's model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Rhythm:
    """The times of a series: at an interval, with growing intervals, or every so many seconds by
    the clock (cron)."""

    kind: str
    """`every`, `backoff` or `cron`."""
    base_ms: int
    """The interval, the first interval, or the seconds of the cron expression `*/n * * * * *`."""
    factor: int = 1
    cap_ms: int = 0
    times: int = 0
    """Most occurrences; 0: no bound."""
    until_ms: int = 0
    late_policy: str = "fire-once"

    @property
    def names_hours(self) -> bool:
        """It is a cron expression of wall-clock times: new zone data move them."""
        return self.kind == "cron" and self.base_ms != 2_000

    def next_ms(
        self,
        planned_ms: int,
        occurrence: int,
        after_ms: int,
        *,
        zone_ms: int = 0,
        wall_ms: int | None = None,
    ) -> int | None:
        """Return the first time behind `planned_ms` and after `after_ms`; None: the series ends
        before.

        `zone_ms`: how far the wall clock is ahead of UTC. `wall_ms`: the wall-clock time of
        `planned_ms`, if it has one; then the next one has a later one."""
        if self.times and occurrence >= self.times:
            return None
        if self.kind == "cron":
            behind_ms = planned_ms if wall_ms is None else wall_ms - zone_ms
            time_ms = self._on_clock(max(behind_ms, after_ms), zone_ms) + self.base_ms
        else:
            *_, time_ms = self._times(planned_ms, occurrence, max(planned_ms, after_ms))
        return None if self.until_ms and time_ms > self.until_ms else time_ms

    def _on_clock(self, time_ms: int, zone_ms: int) -> int:
        """Return the last time up to this one at which the wall clock shows a time of the cron
        expression."""
        return time_ms - (time_ms + zone_ms) % self.base_ms

    def is_on_clock(self, time_ms: int, zone_ms: int) -> bool:
        """Return whether the wall clock shows a time of the cron expression."""
        return self._on_clock(time_ms, zone_ms) == time_ms

    def last_ms(
        self,
        planned_ms: int,
        occurrence: int,
        until_ms: int,
        *,
        zone_ms: int = 0,
        wall_ms: int | None = None,
    ) -> int:
        """Return the last time up to `until_ms`, that of `planned_ms` at least, whatever the number
        of occurrences."""
        until_ms = min(until_ms, self.until_ms or until_ms)
        if self.kind == "cron":
            time_ms = self._on_clock(until_ms, zone_ms)
            is_behind = wall_ms is None or time_ms + zone_ms > wall_ms
            return time_ms if time_ms > planned_ms and is_behind else planned_ms
        return (
            [planned_ms, *self._times(planned_ms, occurrence, until_ms)][-2]
            if until_ms > planned_ms
            else planned_ms
        )

    def _times(self, planned_ms: int, occurrence: int, after_ms: int) -> list[int]:
        """Return times behind `planned_ms`, the last two of them around `after_ms`; those long
        before it are left out."""
        times = [planned_ms]
        while times[-1] <= after_ms:
            interval_ms = self._interval_ms(times[-1], occurrence)
            left_ms = after_ms - times[-1]
            is_steady = interval_ms == (
                self.base_ms if self.kind != "backoff" or self.factor == 1 else self.cap_ms
            )
            intervals = left_ms // interval_ms if is_steady and left_ms > 3 * interval_ms else 1
            times.append(times[-1] + intervals * interval_ms)
            occurrence += 1
        return times[1:]

    def _interval_ms(self, time_ms: int, occurrence: int) -> int:
        if self.kind == "backoff":
            return int(
                min(self.cap_ms, self.base_ms * self.factor ** max(0, min(occurrence - 1, 60)))
            )
        return self.base_ms

    def headers(self) -> list[tuple[str, bytes | None]]:
        """Return the headers that ask for it."""
        if self.kind == "cron":
            # Hours that are named make it an expression of wall-clock times.
            hours = "0-23" if self.names_hours else "*"
            text = f"cron */{self.base_ms // 1_000} * {hours} * * *"
        elif self.kind == "backoff":
            text = f"backoff {self.base_ms}ms {self.factor} {self.cap_ms}ms"
        else:
            text = f"every {self.base_ms}ms"
        headers: list[tuple[str, bytes | None]] = [("chronos-repeat", text.encode())]
        if self.times:
            headers.append(("chronos-repeat-times", b"%d" % self.times))
        if self.until_ms:
            headers.append(("chronos-repeat-until", b"%d" % self.until_ms))
        if self.late_policy != "fire-once":
            headers.append(("chronos-late-policy", self.late_policy.encode()))
        return headers
