"""The archive's tables are what their documentation says."""

from __future__ import annotations

from pathlib import Path

from chronos.spark import schema
from chronos.spark.reference import reference

ROOT = Path(__file__).parents[2]


def test_the_reference_is_made_from_the_tables() -> None:
    """`python -m chronos.spark` prints it."""
    assert (ROOT / "docs/reference/archive.md").read_text(encoding="utf-8") == reference()


def test_every_column_says_what_it_means_and_every_table_by_which_hour_it_lies() -> None:
    """Times are in ms and are called so; what hours are made of is a column."""
    for table in schema.TABLES.values():
        names = [name for name, *_ in table.columns]
        assert len(set(names)) == len(names)
        assert table.partitioned_by is None or table.partitioned_by in names
        assert all(len(meaning) > 4 for *_, meaning in table.columns)


def test_whatever_is_read_may_be_null() -> None:
    """So that a column that an older version did not write can be asked for."""
    assert all(field.nullable for table in schema.TABLES.values() for field in schema.table_schema(table).fields)
