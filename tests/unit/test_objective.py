"""Service level objectives: their form, and what meets them."""

from __future__ import annotations

import pytest
from msgspec import Struct

from chronos.spark.objective import Objective, parse_objective


class Late(Struct):
    """The fields of a lateness that objectives read."""

    p50_ms: int | None = 5
    p99_ms: int | None = 1_000
    p999_ms: int | None = 1_001
    max_ms: int | None = 60_000


@pytest.mark.parametrize(
    ("text", "figure", "bound_ms"),
    [
        ("p99<1s", "p99", 1_000),
        (" p99.9 < 1.5s ", "p99.9", 1_500),
        ("max<1m", "max", 60_000),
        ("p50<250ms", "p50", 250),
    ],
)
def test_an_objective_is_a_figure_and_a_bound(text: str, figure: str, bound_ms: int) -> None:
    assert parse_objective(text) == Objective(
        figure=figure, bound_ms=bound_ms, text=text.replace(" ", "")
    )


@pytest.mark.parametrize("text", ["", "p99", "p99<=1s", "p98<1s", "p99>1s", "p99<", "p99<1 s"])
def test_another_form_is_an_error_that_shows_the_right_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"write p50, p99, p99\.9 or max"):
        parse_objective(text)


def test_a_bound_that_is_no_duration_is_an_error() -> None:
    with pytest.raises(ValueError, match="soon"):
        parse_objective("p99<soon")


def test_a_figure_meets_its_bound_if_it_is_less() -> None:
    """Where nothing was delivered, nothing was late."""
    for text, met in (
        ("p99<1s", False),
        ("p99<1001ms", True),
        ("p50<6ms", True),
        ("max<1m", False),
    ):
        assert parse_objective(text).is_met(Late()) is met  # type: ignore[arg-type]
    nothing = Late(p50_ms=None, p99_ms=None, p999_ms=None, max_ms=None)
    assert parse_objective("max<0").is_met(nothing)  # type: ignore[arg-type]
