"""The commits of an archive: what a job writes to several tables counts with its rows of `offsets`,
which are written last.

    1. each table is written, by a commit of its own
    2. rows of `offsets` name the version of every table: this is the commit point

A reader takes the newest rows of `offsets` and reads the versions they name (`tables`). Law: what a
job wrote before it was killed, or failed, is named by no row; the next job takes these tables back
to the versions that are named, before it writes. Law: a job that commits holds the archive's
lock. Law: what was forgotten is in no file, once another job that commits has begun while no
backfill runs (`vacuum`)."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import uuid4

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from chronos.errors import ArchiveFailed, ArchiveInUse, ArchiveUnusable
from chronos.spark import ledger, schema
from chronos.spark.codec import stored
from chronos.spark.delta import Commit, append, create, last_version, table_at
from chronos.spark.runs import ARCHIVE_ID, OffsetRow, check_format, no_archive
from chronos.spark.schema import (
    DEAD_LETTERS,
    DELIVERIES,
    ERASED,
    MESSAGES,
    OFFSETS,
    REJECTED,
    Table,
)
from chronos.spark.session import Step, Watch, ignore
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import pinned, read_table

log = structlog.get_logger("chronos.archive")

OFFSETS_FILES = 64
"""Commits after which the files of `offsets` are merged."""


LETTERS = (REJECTED, DEAD_LETTERS)

WITH_IDS = (MESSAGES, DELIVERIES, *LETTERS)
"""The tables that hold ids, keys or payloads of messages: those that `forget` removes rows from."""

FORGET, VACUUM = "forget", "vacuum"
"""Names in `offsets` of the commit by which messages are forgotten, and of the one after which
their files are removed."""


def create_tables(storage: ArchiveStorage) -> None:
    """Create every table that does not exist, so that a reader finds its columns."""
    for table in schema.TABLES.values():
        create(
            storage,
            table.name,
            schema.table_schema(table),
            partition=table.partition,
            counted=schema.counted(table),
        )


@contextmanager
def committing(spark: SparkSession, storage: ArchiveStorage) -> Iterator["Commits"]:
    """The commits of a job on an archive that exists: other writers are kept out. ArchiveFailed if
    there is none."""
    claim = check_format(storage)
    if claim is None:
        raise no_archive(storage)
    with storage.locked():
        create_tables(storage)
        yield Commits(spark, storage, claim[ARCHIVE_ID])


class Commits:
    """The writer of one archive."""

    def __init__(self, spark: SparkSession, storage: ArchiveStorage, archive_id: str) -> None:
        """Take every table back to what is archived, and, unless a backfill runs, complete a
        `forget` that was killed; ArchiveUnusable if the table `offsets` was lost."""
        self._spark = spark
        self._storage = storage
        self._archive_id = archive_id
        self.is_unsure = False
        """The last commit failed, and may count."""
        now = pinned(spark, storage)
        self.sequence = 0 if now is None else now.sequence
        self.versions: dict[str, int] = {} if now is None else dict(now.versions)
        for name in schema.TABLES:
            if name != OFFSETS.name:
                self._take_back(name)
        if self._has_forgotten():
            self._remove_forgotten()

    def _remove_forgotten(self) -> None:
        try:
            with ledger.locked(self._storage, wait_s=0):
                self.remove_erased_rows_sent()
                self.vacuum()
        except ArchiveInUse as error:
            # A backfill may take hours, and retention deletes what is not archived meanwhile.
            log.warning("a later run removes the files of what was forgotten", reason=str(error))

    def _take_back(self, name: str) -> None:
        last = last_version(self._storage, name)
        if last is None:
            return
        if not self.sequence and last:
            raise ArchiveUnusable(
                f"{self._storage.uri} has a table {name} with rows, and its table offsets has "
                "none: the offsets that are archived are not known. Restore offsets/ from a copy "
                "of the archive that is not older, or choose another location"
            )
        named = self.versions.setdefault(name, 0)
        if last > named:
            log.warning("removing what a job did not commit", table=name, version=named)
            table_at(self._spark, self._storage, name).restoreToVersion(named)
            self.versions[name] = last_version(self._storage, name) or 0

    def read(self, table: Table) -> DataFrame:
        """A table with what is archived."""
        return read_table(self._spark, self._storage, table, self.versions)

    def write(self, table: Table, rows: DataFrame, *, run: str, stream: str, number: int) -> Commit:
        """Write a batch of a stream to a table; it counts with the next `commit`. ArchiveFailed as
        `delta.append`, and after a commit that failed."""
        if self.is_unsure:
            raise ArchiveFailed(
                "an earlier commit of this job failed, and may have been made: run the command "
                "again, which reads what is committed"
            )
        made = stored(rows, table)
        order = [table.time, *(name for name in ("shard", "partition") if name in made.columns)]
        if table.partition is not None:
            order.insert(0, table.partition)
        return append(
            self._storage,
            table.name,
            made.sortWithinPartitions(*order),
            writer=f"{self._archive_id}/{stream}/{run}",
            number=number,
        )

    def commit(
        self,
        rows: Sequence[OffsetRow],
        written: Mapping[str, Commit],
        *,
        run: str,
        stream: str,
        number: int,
        targets: Sequence[str] = (),
    ) -> None:
        """Write rows of `offsets`, with which the batches that were written count. The first row
        has `targets`, those that the messages among them name."""
        versions = self.versions | {name: each.version for name, each in written.items()}
        named = {name: version for name, version in versions.items() if name != OFFSETS.name}
        own = {"sequence": self.sequence + 1, "versions": named}
        made = [{**row, "targets": None, **own} for row in rows]
        if made and targets:
            made[0]["targets"] = list(targets)
        columns = schema.columns_of(OFFSETS)
        frame = self._spark.createDataFrame(
            [tuple(row[name] for name in columns.names) for row in made], columns
        )
        try:
            done = self.write(OFFSETS, frame.coalesce(1), run=run, stream=stream, number=number)
        except BaseException:
            # It may be in the log of the table: a further one that did not know of it would name
            # older versions, without the rows that this one counts as archived.
            self.is_unsure = True
            raise
        self.sequence += 1
        self.versions = versions | {OFFSETS.name: done.version}
        if not done.version % OFFSETS_FILES:
            self._merge_offsets()

    def _merge_offsets(self) -> None:
        """Merge the files of `offsets`, of which each commit adds one: every run and every audit
        reads all of them. No row names a version of this table, and its newest one has all rows."""
        table_at(self._spark, self._storage, OFFSETS.name).optimize().executeCompaction()
        merged = last_version(self._storage, OFFSETS.name)
        assert merged is not None
        self.versions[OFFSETS.name] = merged

    def note(self, work: str) -> None:
        """Write a row of `offsets` that names the newest version of every table, after work that is
        no archiving and changed some of them: the row's `table` is its name, and it has no
        topic."""
        for name in schema.TABLES:
            self.versions[name] = last_version(self._storage, name) or 0
        now_ms = time.time_ns() // 1_000_000
        numbers = dict.fromkeys(
            (
                "partition",
                "from_offset",
                "until_offset",
                "log_start",
                "stable_end",
                "high_watermark",
            ),
            0,
        )
        row = dict.fromkeys(name for name, *_ in OFFSETS.columns) | numbers
        row |= {"table": work, "topic": "", "read_ms": now_ms, "gap": False}
        self.commit([row], {}, run=uuid4().hex, stream=work, number=0)

    def _has_forgotten(self) -> bool:
        """Whether files that hold what was forgotten may be left."""
        if not self.versions.get(ERASED.name):
            return False
        works = self.read(OFFSETS).where(f.col("table").isin(FORGET, VACUUM))
        last = works.agg(f.max_by("table", "sequence").alias("table")).first()
        return last is not None and last["table"] == FORGET

    def remove_erased_rows_sent(self) -> None:
        """Remove erased messages from the ledger: after their commit, so that no message that is
        still archived could be sent twice."""
        ledger.remove_erased(self._spark, self._storage, self.read(ERASED), self.read(MESSAGES))

    def vacuum(self, watch: Watch = ignore) -> None:
        """Remove every file that the newest versions of the tables with ids do not have: those of
        what was forgotten, and of jobs that were killed. A reader of an older version fails."""
        for name in (*(table.name for table in WITH_IDS), ledger.ROWS):
            if last_version(self._storage, name) is not None:
                watch(Step(name=f"removing old files of {name}"))
                table_at(self._spark, self._storage, name).vacuum(0)
        self.note(VACUUM)
