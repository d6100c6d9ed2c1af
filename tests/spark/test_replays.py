"""The effect of replays on outcomes: a replayed message is no longer missing, and its replay is no
duplicate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from chronos.spark.audit.outcomes import with_replays
from chronos.spark.ledger import LEDGER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OUTCOME_COLUMNS = (
    "shard int, source_offset long, occurrence int, outcome string, reason string, deliveries "
    "long, due_ms long, delivered_ms long"
)
DUE_MS = 1_900_000_000_000

Replay = tuple[str, str]
"""The way it was sent, and its outcome when that was planned."""

DELAY, DIRECT, COPY = ("delay", "missing"), ("direct", "missing"), ("direct", "delivered")

CASES: list[tuple[str, tuple[str, str | None, int], list[Replay], tuple[str, str | None]]] = [
    ("missing, and not replayed", ("missing", None, 0), [], ("missing", None)),
    ("missing, and replayed", ("missing", None, 0), [DELAY], ("replaced", "replayed")),
    (
        "missing, and replayed for two purposes",
        ("missing", None, 0),
        [DELAY, DELAY],
        ("replaced", "replayed"),
    ),
    (
        "missing, and only its id was restored",
        ("missing", None, 0),
        [("delay", "settled")],
        ("missing", None),
    ),
    ("missing, though sent to its target", ("missing", None, 0), [DIRECT], ("missing", None)),
    (
        "brought back as pending",
        ("pending", "not-settled", 0),
        [("delay", "pending")],
        ("replaced", "replayed"),
    ),
    (
        "its target not read so far",
        ("pending", "target-not-read-so-far", 0),
        [("delay", "pending")],
        ("pending", "target-not-read-so-far"),
    ),
    ("unknown", ("unknown", "gap", 0), [("delay", "unknown")], ("unknown", "gap")),
    (
        "delivered, and replayed",
        ("delivered", None, 1),
        [("delay", "delivered")],
        ("delivered", None),
    ),
    (
        "delivered, and sent to its target once more",
        ("duplicated", None, 2),
        [COPY],
        ("delivered", "replayed"),
    ),
    ("the same, sent twice", ("duplicated", None, 3), [COPY], ("duplicated", None)),
    (
        "the same, for two purposes",
        ("duplicated", None, 3),
        [COPY, COPY],
        ("delivered", "replayed"),
    ),
    (
        "missing, and sent to its target twice",
        ("duplicated", None, 2),
        [DIRECT],
        ("duplicated", None),
    ),
    (
        "missing, sent to its target, and once more for another purpose",
        ("duplicated", None, 2),
        [DIRECT, COPY],
        ("delivered", "replayed"),
    ),
    (
        "unknown, and perhaps in its target before",
        ("duplicated", None, 2),
        [("direct", "unknown")],
        ("delivered", "replayed"),
    ),
    (
        "duplicated, and replayed through the delay topic",
        ("duplicated", None, 2),
        [("delay", "duplicated")],
        ("duplicated", None),
    ),
    (
        "delivered though cancelled",
        ("duplicated", "cancelled", 1),
        [COPY],
        ("duplicated", "cancelled"),
    ),
]


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> dict[int, Any]:
    """The outcomes of all cases, by the offset of the case."""
    outcomes = [
        (3, at, 1, outcome, reason, deliveries, DUE_MS, DUE_MS + 5 if deliveries else None)
        for at, (_, (outcome, reason, deliveries), _, _) in enumerate(CASES)
    ]
    outcomes.append((3, len(CASES), 1, "duplicated", None, 2, DUE_MS, DUE_MS - 501))
    outcomes.append((3, len(CASES) + 1, 2, "missing", None, 0, DUE_MS, None))
    sent = [_sent(at, *replay) for at, (_, _, replays, _) in enumerate(CASES) for replay in replays]
    sent += [_sent(len(CASES), *COPY), _sent(len(CASES) + 1, *DELAY)]
    rows = with_replays(
        spark.createDataFrame(outcomes, OUTCOME_COLUMNS), spark.createDataFrame(sent, LEDGER)
    )
    assert rows.columns == [column.split()[0] for column in OUTCOME_COLUMNS.split(", ")]
    return {row["source_offset"]: row for row in rows.collect()}


def _sent(offset: int, via: str, outcome: str) -> tuple[Any, ...]:
    return ("r", "backfill", via, 3, offset, 1, outcome, b"i", b"replay", "orders", DUE_MS, 10, "")


@pytest.mark.parametrize("number", range(len(CASES)), ids=[name for name, *_ in CASES])
def test_a_replay_changes_the_outcome_of_its_original(found: dict[int, Any], number: int) -> None:
    """Each case: its outcome by the logs, its replays, and the outcome with both."""
    assert (found[number]["outcome"], found[number]["reason"]) == CASES[number][3]


def test_an_early_delivery_stays_early(found: dict[int, Any]) -> None:
    """A later replay does not change when the first record came."""
    assert found[len(CASES)]["outcome"] == "early"


def test_another_occurrence_was_not_replayed(found: dict[int, Any]) -> None:
    """A replay counts only for the occurrence it repeats."""
    assert found[len(CASES) + 1]["outcome"] == "missing"
