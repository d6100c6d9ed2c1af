"""Service level objectives of an audit: bounds on the lateness of deliveries, such as `p99<1s`.

This module needs neither PySpark nor Arrow: the options of the command are checked before Spark
starts."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from chronos.core.timefmt import parse_duration_ms

if TYPE_CHECKING:
    from chronos.spark.audit.summary import Lateness, SummaryRow

FIELDS = {"p50": "p50_ms", "p99": "p99_ms", "p99.9": "p999_ms", "max": "max_ms"}
"""The figures of lateness that can be bounded -> their fields of `Lateness`."""

_FORM = re.compile(r"\s*([\w.]+)\s*<\s*([^\s=]\S*)\s*")


class Objective(Struct, frozen=True, kw_only=True):
    """One bound on the lateness of what was delivered."""

    figure: str
    """A key of `FIELDS`."""
    bound_ms: int
    """The figure is to be less than this."""
    text: str
    """As it was given, without blanks."""

    def value_ms(self, lateness: "Lateness") -> int | None:
        """Return the figure (ms); None if nothing was delivered."""
        value: int | None = getattr(lateness, FIELDS[self.figure])
        return value

    def is_met(self, lateness: "Lateness") -> bool:
        """Return whether the figure is less than the bound, or nothing was delivered."""
        value_ms = self.value_ms(lateness)
        return value_ms is None or value_ms < self.bound_ms


class Result(Struct, frozen=True, kw_only=True):
    """An objective, compared with one audit."""

    objective: Objective
    value_ms: int | None
    """The figure of the whole window; None: nothing was delivered."""
    met: bool
    """Whether the whole window meets it."""
    missed_days: list[int]
    """The days (UTC, epoch ms) of the window that do not meet it."""


def parse_objective(text: str) -> Objective:
    """Return the objective of a text such as `p99<1s`. Raises ValueError, with a text for users."""
    match = _FORM.fullmatch(text)
    if match is None or match[1] not in FIELDS:
        raise ValueError(
            f"{text!r} is not an objective; write p50, p99, p99.9 or max, < and a duration, such "
            "as 'p99<1s'"
        )
    return Objective(
        figure=match[1], bound_ms=parse_duration_ms(match[2]), text=f"{match[1]}<{match[2]}"
    )


def results(
    objectives: Iterable[Objective], overall: "SummaryRow", days: Sequence["SummaryRow"]
) -> list[Result]:
    """Return each objective with its result. `days`: the rows of `summary.by_day`."""
    return [
        Result(
            objective=each,
            value_ms=each.value_ms(overall.lateness),
            met=each.is_met(overall.lateness),
            missed_days=[day.at_ms or 0 for day in days if not each.is_met(day.lateness)],
        )
        for each in objectives
    ]
