"""A table fails with each of its cases that does not hold, and with no other."""

from __future__ import annotations

import pytest

from tests.harness.table import table


@table(("left", "right"), [(1, 1), (2, 2)])
def test_a_table_whose_cases_hold_passes(left: int, right: int) -> None:
    assert left == right


def test_a_table_names_each_case_that_fails() -> None:
    @table("number", [1, pytest.param(2, id="two"), 3, 4])
    def odd(number: int) -> None:
        assert number % 2

    with pytest.RaisesGroup(AssertionError, AssertionError) as found:
        odd()
    assert [each.__notes__ for each in found.value.exceptions] == [["case: two"], ["case: (4,)"]]


def test_each_case_of_one_table_meets_each_of_another() -> None:
    @table("number", [1, 2])
    @table("other", [1, 3])
    def equal(number: int, other: int) -> None:
        assert number * other == other

    with pytest.RaisesGroup(AssertionError, AssertionError) as found:
        equal()
    assert found.value.__notes__ == ["case: (2,)"]
    assert [each.__notes__ for each in found.value.exceptions] == [["case: (1,)"], ["case: (3,)"]]
