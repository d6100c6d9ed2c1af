"""The counts of a plan: its rows in, the numbers of its report out. Nothing is sent, and no broker is asked.

Law: the rows are counted once, by all that a report tells them apart by.
"""

from collections import Counter
from collections.abc import Iterable

from msgspec import structs
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from chronos.spark.requests import Report

TARGETS_MAX = 1_000
"""Most targets that a report counts by name; the ones with most messages."""


def counts_of(rows: DataFrame) -> list[Row]:
    """Rows of `selection.PLAN`, with `is_requested` and `left_out` -> the numbers of those that have the same of both, outcome and
    target."""
    by = rows.groupBy("is_requested", "left_out", "outcome", "target")
    found: list[Row] = by.agg(
        f.count("*").alias("messages"), f.sum("bytes").alias("bytes"), f.min("due_ms").alias("first"),
        f.max("due_ms").alias("last"),
    ).collect()  # fmt: skip
    return found


def counted(report: Report, cells: Iterable[Row]) -> Report:
    """The report with the numbers of `counts_of`: the messages of the plan, and those that are left out of it by reason."""
    requested = [cell for cell in cells if cell["is_requested"]]
    planned = [cell for cell in requested if cell["left_out"] is None]
    left_out = _by("left_out", requested)
    targets = sorted(_by("target", planned).items(), key=lambda each: (-each[1], each[0]))
    return structs.replace(
        report,
        messages=sum(cell["messages"] for cell in planned),
        bytes=sum(cell["bytes"] for cell in planned),
        expired=left_out["expired"],
        too_large=left_out["too-large"],
        no_target=left_out["no-target"],
        compacted=left_out["compacted"],
        first_due_ms=min((cell["first"] for cell in planned), default=None),
        last_due_ms=max((cell["last"] for cell in planned), default=None),
        outcomes=dict(_by("outcome", planned)),
        targets=dict(targets[:TARGETS_MAX]),
    )


def _by(column: str, cells: Iterable[Row]) -> Counter[str]:
    """The number of messages for each value of a column."""
    found: Counter[str] = Counter()
    for cell in cells:
        found[cell[column]] += cell["messages"]
    return found
