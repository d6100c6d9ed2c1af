"""The result of all legs of a run: a table on the terminal and in docs/contributing/results.md."""

import datetime
import os
from pathlib import Path
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table

from tests.chaos.drill import Result, Window
from tests.chaos.faults import FAULTS, Fault

PAGE = Path(__file__).parents[2] / "docs" / "contributing" / "results.md"
TAKE_OVER_PARTS = ("fence_ms", "resolve_ms", "commit_ms")
"""Of the log line `master`: earlier masters fenced, the rest of the progress log applied, the epoch
record committed."""
HEADINGS = ("fault", "count", "late p50", "late p90", "late max", "bar", "")


class Report:
    """The results of the legs so far. `failures` are all complaints except lateness, loss,
    duplicates and early messages."""

    def __init__(self, *, rate: int) -> None:
        self.rate = rate
        self.failures: list[str] = []
        self.take_overs: list[dict[str, int]] = []
        """The times of taking over that the masters logged, ms by part."""
        self._rates: set[int] = set()
        self._windows: list[Window] = []
        self._messages = self._lost = self._duplicated = self._early = 0

    def add(self, result: Result, rate: int) -> None:
        """Add the result of a leg that ran at this rate."""
        self._rates.add(rate)
        self._windows += result.windows
        self._messages += result.messages
        self._lost += result.lost
        self._duplicated += result.duplicated
        self._early += result.early

    @property
    def missed(self) -> bool:
        """True if a message was lost, duplicated or early, a bar was missed, or anything else
        failed."""
        return (
            bool(self.failures)
            or self._lost + self._duplicated + self._early > 0
            or any(row[-1] != "ok" for row in self.rows())
        )

    def rows(self) -> list[tuple[str, ...]]:
        """A row per fault that was run, in the columns of HEADINGS; lateness is the worst of each
        run, over all runs."""
        found = []
        for fault in FAULTS:
            windows = [window for window in self._windows if window.name == fault.name]
            if windows:
                found.append(_row(fault, windows))
        return found

    def summary(self) -> str:
        """Totals of the whole run in one sentence."""
        rates = " and ".join(f"{rate:,}/s" for rate in sorted(self._rates, reverse=True))
        return (
            f"{self._messages:,} messages at {rates}: {self._lost} lost, {self._duplicated} "
            f"duplicated, {self._early} early; {len(self.failures) or 'no'} other "
            f"complaint{'s' if len(self.failures) != 1 else ''}"
        )

    def beyond_the_reference(self) -> str | None:
        """How much later than a bare transactional producer's records messages were, in one
        sentence; None where there was none."""
        beyond_s = sorted(
            (window.worst_ms - window.reference_ms) / 1_000
            for window in self._windows
            if window.reference_ms is not None
        )
        if not beyond_s:
            return None
        references = [window.reference_ms for window in self._windows if window.reference_ms]
        return (
            f"A bare transactional producer was late by {median(references) / 1_000:.2f} s, worst "
            f"{max(references) / 1_000:.2f} s, beside the same faults; Chronos by "
            f"{median(beyond_s):.2f} s more, worst {beyond_s[-1]:.2f} s"
        )

    def taking_over(self) -> str:
        """The parts of taking over in one sentence."""
        found = {part: sorted(each[part] for each in self.take_overs) for part in TAKE_OVER_PARTS}
        parts = ", ".join(
            f"{part.removesuffix('_ms')} {median(times):.0f} and {times[-1]} ms"
            for part, times in found.items()
            if times
        )
        return (
            f"{len(self.take_overs)} times a shard was taken over, median and worst: "
            f"{parts or 'never'}"
        )

    def show(self) -> None:
        """Print the table on the terminal."""
        out = Console()
        table = Table(*HEADINGS)
        for row in self.rows():
            table.add_row(*row)
        out.print(table)
        out.print(self.summary(), highlight=False)
        out.print(self.taking_over(), highlight=False)
        if (beyond := self.beyond_the_reference()) is not None:
            out.print(beyond, highlight=False)
        for complaint in self.failures:
            out.print(complaint, highlight=False, markup=False)

    def keep(self, command: str, coordinator: str) -> None:
        """Write the table between the markers of the coordinator in
        docs/contributing/results.md."""
        lines = [
            f"Measured on {datetime.date.today()} by `{command}`: {os.cpu_count()} cores for "
            f"nodes, Kafka, coordinator and load together. {self.summary()}. {self.taking_over()}.",
            "",
            f"| {' | '.join(HEADINGS)} |",
            "|---|" + "---|" * (len(HEADINGS) - 1),
            *(f"| {' | '.join(row)} |" for row in self.rows()),
            *(["", *(f"- {complaint}" for complaint in self.failures)] if self.failures else []),
        ]
        begin, end = (f"<!-- measured with {coordinator}: {part} -->" for part in ("begin", "end"))
        before, _, rest = PAGE.read_text().partition(begin)
        _, _, after = rest.partition(end)
        PAGE.write_text(before + begin + "\n" + "\n".join(lines) + "\n" + end + after)


def _row(fault: Fault, windows: list[Window]) -> tuple[str, ...]:
    worst_s = sorted(window.worst_ms / 1_000 for window in windows)
    cuts = quantiles(worst_s, n=10, method="inclusive") if len(worst_s) > 1 else worst_s * 9
    bar = f"<= {fault.late_s:g} s"
    if fault.beyond_s is not None:
        bar += f", or {fault.beyond_s:g} s more than a bare producer"
    return (
        fault.title,
        str(len(worst_s)),
        f"{cuts[4]:.2f} s",
        f"{cuts[8]:.2f} s",
        f"{worst_s[-1]:.2f} s",
        bar,
        "MISSED" if any(_is_late(fault, window) for window in windows) else "ok",
    )


def _is_late(fault: Fault, window: Window) -> bool:
    if window.worst_ms <= fault.late_s * 1_000:
        return False
    if fault.beyond_s is None or window.reference_ms is None:
        return True
    return window.worst_ms - window.reference_ms > fault.beyond_s * 1_000
