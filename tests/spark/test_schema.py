"""The schema of the archive's tables agrees with its documentation."""

from __future__ import annotations

from pathlib import Path

from chronos.spark import schema
from chronos.spark.schema import reference

ROOT = Path(__file__).parents[2]


def test_the_reference_is_made_from_the_tables() -> None:
    """`python -m chronos.spark` prints it."""
    assert (ROOT / "docs/reference/archive.md").read_text(encoding="utf-8") == reference()


def test_every_column_has_a_meaning_and_every_table_a_column_for_its_time() -> None:
    """Column names are unique, also with those that are derived, and the date or month of a table
    comes from one of its columns."""
    for table in schema.TABLES.values():
        names = [name for name, *_ in table.columns]
        assert len(set(names)) == len(names)
        assert table.time in names
        stored = schema.table_schema(table).names
        assert len(set(stored)) == len(stored) == len(names) + len(schema.derived(table))
        assert set(schema.counted(table)) <= set(stored)
        assert all(len(meaning) > 4 for *_, meaning in table.columns)


def test_every_column_read_may_be_null() -> None:
    """A column that is added later is not in the files of before."""
    assert all(
        field.nullable
        for table in schema.TABLES.values()
        for field in schema.table_schema(table).fields
    )
