"""What the runs of `chronos archive --follow` have done: its metrics, and whether the archive is up
to date.

`ARCHIVE_METRICS` lists the metrics; `docs/reference/metrics.md` is made from it
(`cluster.metrics`)."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from chronos import __version__
from chronos.core.timefmt import format_duration, format_time

ARCHIVE_METRICS: tuple[tuple[str, str, str], ...] = (
    ("chronos_archive_build_info", "info", "Version, cluster and location, as labels."),
    (
        "chronos_archive_ready",
        "gauge",
        "1 if the archive is up to date (`/readyz`).",
    ),
    (
        "chronos_archive_end_timestamp_seconds",
        "gauge",
        "End of the archive, as Unix time, by the brokers' clocks: it holds every record of the "
        "delay topic that was written by then. It does not move while the service writes no "
        "progress. Absent until the delay topic was read to its end once.",
    ),
    (
        "chronos_archive_success_timestamp_seconds",
        "gauge",
        "When the last run without an error ended, as Unix time; before the first one, when the "
        "process started.",
    ),
    (
        "chronos_archive_commit_timestamp_seconds",
        "gauge",
        "When this process last committed to the archive, as Unix time. A run that finds nothing "
        "new commits too. Absent before the first commit.",
    ),
    (
        "chronos_archive_records_total",
        "counter",
        "Records archived, by the label `table`.",
    ),
    (
        "chronos_archive_gaps_total",
        "counter",
        "Gaps found, by the label `table`: the table `offsets` has the reason of each.",
    ),
    ("chronos_archive_runs_total", "counter", "Runs that ended, with or without an error."),
    (
        "chronos_archive_failures_total",
        "counter",
        "Runs that ended with an error, by the label `error`, its kind as in "
        "[errors](errors.md); `/readyz` has the text of the last one.",
    ),
    (
        "chronos_archive_run_seconds",
        "gauge",
        "Duration of the last run that ended. Absent before the first one has.",
    ),
)
"""Metrics of `chronos archive --follow`: name, kind and meaning."""

STALE_ROUNDS = 3
"""Rounds, each a pause and a run, after which the last run without an error is too long ago."""


class FailedRun(Struct, frozen=True, kw_only=True):
    """A run that ended with an error."""

    at_ms: int
    """When it ended, epoch ms."""
    text: str


class ArchiveStatus(Collector):
    """What the runs of one process have done. Any thread may call."""

    def __init__(
        self,
        tables: Sequence[str],
        *,
        cluster: str,
        location: str,
        pause_s: float,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`tables`: those that runs count. `pause_s`: between two runs. `monotonic`, `now`: clocks
        in seconds, the second one since the epoch."""
        self._labels = {"version": __version__, "cluster": cluster, "location": location}
        self._pause_s = pause_s
        self._monotonic = monotonic
        self._now = now
        self._lock = threading.Lock()
        self._records = Counter(dict.fromkeys(tables, 0))
        self._gaps = Counter(dict.fromkeys(tables, 0))
        self._failures: Counter[str] = Counter()
        self._runs = 0
        self._began_s: float | None = None
        self._run_s: float | None = None
        self._success_run_s = 0.0
        self._success_s: float | None = None
        self._success_at_s = now()
        self._commit_at_s: float | None = None
        self._end_ms: int | None = None
        self._failure: FailedRun | None = None

    def run_began(self) -> None:
        """A run begins."""
        with self._lock:
            self._began_s = self._monotonic()

    def committed(self, counts: Mapping[str, tuple[int, int]]) -> None:
        """A commit was made. `counts`: by table the records that it added, and the gaps found."""
        with self._lock:
            self._commit_at_s = self._now()
            for table, (records, gaps) in counts.items():
                self._records[table] += records
                self._gaps[table] += gaps

    def archived_until(self, end_ms: int | None) -> None:
        """The end of the archive, epoch ms; 0 or None: it has none yet."""
        with self._lock:
            self._end_ms = end_ms or self._end_ms

    def run_succeeded(self) -> None:
        """The run ended without an error."""
        with self._lock:
            self._success_run_s = self._run_ended()
            self._success_s, self._success_at_s = self._monotonic(), self._now()
            self._failure = None

    def run_failed(self, error: Exception) -> None:
        """The run ended with an error; another one follows."""
        with self._lock:
            self._run_ended()
            self._failures[type(error).__name__] += 1
            self._failure = FailedRun(at_ms=int(self._now() * 1_000), text=str(error))

    def _run_ended(self) -> float:
        assert self._began_s is not None, "no run has begun"
        self._run_s = self._monotonic() - self._began_s
        self._began_s = None
        self._runs += 1
        return self._run_s

    def reasons(self) -> list[str]:
        """Why the archive is not up to date; empty if it is."""
        with self._lock:
            return self._reasons()

    def _reasons(self) -> list[str]:
        if self._success_s is None:
            found = ["no run has ended without an error yet"]
        else:
            age_s = self._monotonic() - self._success_s
            most_s = STALE_ROUNDS * (self._pause_s + self._success_run_s)
            if age_s <= most_s:
                return []
            found = [
                f"the last run without an error ended {_seconds(age_s)} ago, and more than "
                f"{_seconds(most_s)} is too long"
            ]
        return found + self._last_failure()

    def details(self) -> list[str]:
        """What operators should know although the archive is up to date."""
        with self._lock:
            return self._last_failure()

    def _last_failure(self) -> list[str]:
        failure = self._failure
        if failure is None:
            return []
        return [f"the run that ended at {format_time(failure.at_ms)} failed: {failure.text}"]

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: a collector that is registered once needs no check for
        duplicates."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield all families of metrics."""
        with self._lock:
            values: dict[str, Any] = {
                "build_info": self._labels,
                "ready": float(not self._reasons()),
                "end_timestamp_seconds": None if self._end_ms is None else self._end_ms / 1_000,
                "success_timestamp_seconds": self._success_at_s,
                "commit_timestamp_seconds": self._commit_at_s,
                "records_total": ("table", dict(self._records)),
                "gaps_total": ("table", dict(self._gaps)),
                "runs_total": self._runs,
                "failures_total": ("error", dict(self._failures)),
                "run_seconds": self._run_s,
            }
        for name, kind, meaning in ARCHIVE_METRICS:
            value = values[name.removeprefix("chronos_archive_")]
            if value is not None:
                yield _family(name, kind, meaning, value)


def _family(name: str, kind: str, meaning: str, value: Any) -> Metric:
    if kind == "info":
        return InfoMetricFamily(name.removesuffix("_info"), meaning, value)
    made = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    if not isinstance(value, tuple):
        return made(name, meaning, value=float(value))
    label, samples = value
    family = made(name, meaning, labels=[label])
    for each, count in samples.items():
        family.add_metric([each], float(count))
    return family


def _seconds(seconds: float) -> str:
    return format_duration(max(1, round(seconds)) * 1_000)
