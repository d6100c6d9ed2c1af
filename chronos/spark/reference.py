"""`docs/reference/archive.md`, made from the tables themselves."""

from chronos.spark.schema import FORMAT, TABLES, Table

_HEAD = f"""\
# The archive's tables

<!-- Made by `python -m chronos.spark`; change `chronos/spark/schema.py` instead. -->

What `chronos archive` writes ([how](../how-to/archive.md)). Each table is a folder of Parquet files, format {FORMAT}:

```
<location>/archive.json                                              cluster, topics, format
<location>/<table>/batch=<batch>/due_date=<date>/due_hour=<hour>/    Parquet files
<location>/_runs/                                                    Spark's checkpoints: not data, readers skip it
```

All times are milliseconds since the epoch, by the broker's clock unless said otherwise. `batch` names the run and the micro-batch that wrote the rows; one
that is written again is written over, so each record is there exactly once. `due_date` (`YYYY-MM-DD`) and `due_hour` (0 to 23) are UTC, of the column that
each table is partitioned by, or of the record's timestamp where that is null or no time (a foreign header may say anything).

Columns are only ever added, and those added may be null: with the schema of today an older archive reads as null what it did not know. A change of
meaning is a new `format`; a version that does not know it refuses the archive.

`headers` are in order and may repeat; their values are bytes. A name that is not UTF-8 has U+FFFD in it, because so Spark reads it.
"""


def reference() -> str:
    """The page."""
    rows = [f"| [`{table.name}`](#{table.name}) | {_hours(table)} | {table.meaning} |\n" for table in TABLES.values()]
    listed = "\n| table | by the hour of | rows |\n|---|---|---|\n" + "".join(rows)
    return _HEAD + listed + "".join(map(_section, TABLES.values()))


def _hours(table: Table) -> str:
    return "" if table.partitioned_by is None else f"`{table.partitioned_by}`"


def _section(table: Table) -> str:
    rows = [
        f"| `{name}` | `{kind.simpleString()}` | {'yes' if nullable else ''} | {meaning} |\n"
        for name, kind, nullable, meaning in table.columns
    ]
    head = f"\n## {table.name}\n\n{table.meaning}\n\n| column | type | null | meaning |\n|---|---|---|---|\n"
    return head + "".join(rows)
