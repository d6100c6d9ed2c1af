"""The ledger of backfills, in `sent/` of the archive: the runs, their plans and the messages they
sent; and the headers by which a replay names its original.

The messages are sent in `backfill/`; a run's request is `request.BackfillRequest`. The names in
JSON do not change. Law: through the delay topic no message is sent twice to the same destination for
the same purpose. A direct run sends at least once: after a kill its last messages may be sent again.

    sent/run=<run>/run.json        the run: its request, state and attempts
    sent/run=<run>/_plan/          the messages to send, with payloads, in order: written before anything is sent
    sent/run=<run>/_begun/         the parts that tasks began to send; of a run with a rate and a direct one also the rows sent
    sent/run=<run>/_rates/         the changes of the rate, a file for each
    sent/run=<run>/_cancel/        there as soon as somebody asks to cancel the run
    sent/run=<run>/report.json     the counts of the run
    sent/rows/                     a Delta table of the messages sent, as `LEDGER`: those of a run are written when it ends

1. The plan consults the ledger. A message is left out if the rows of any ended run hold its token
   `(shard, source_offset, occurrence)` for the same purpose and destination. An unfinished run is ended before
   another is planned.

2. The log is the record of what was sent. A part of the plan is one file, sent in order in
   transactions by one producer; each record carries run, part and row (`REPLAY_POSITION`). After a
   kill at any point, a part continues after its last committed row in the delay topic (or in the
   archived messages, where the topic was trimmed). Of a direct run the tasks record the rows sent.

3. No task of an earlier attempt writes to the delay topic any more. A task records its part, takes
   its transactional id, then checks that its attempt is still the last one. A new attempt is
   recorded first, then takes the ids of all recorded parts, which fences their producers and
   resolves their transactions, and only then reads the log. A task that Spark runs again sends
   nothing and fails: that ends the attempt, and the next one reconciles the log with the plan. A
   direct run has no such ids: a task of an earlier attempt may still send.

4. A run is cancelled as a new attempt begins: what was sent is known before the state changes, and
   is in `rows` then. After that its ids are cancelled, as often as the command is killed: a second
   cancel changes nothing.
"""  # noqa: E501

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from msgspec import Struct, structs, to_builtins
from msgspec import convert as from_builtins
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from chronos.core.message import (
    ATTEMPTS,
    LATE_POLICY,
    REPEAT,
    REPEAT_TIMES,
    REPEAT_UNTIL,
    SPREAD,
    TIME_ZONE,
)
from chronos.errors import ArchiveFailed
from chronos.spark.delta import append, create, last_version, read, table_at
from chronos.spark.request import BackfillRequest
from chronos.spark.storage import LOCK_WAIT_S, ArchiveStorage


class Attempt(Struct, kw_only=True):
    """One attempt at sending a run."""

    number: int
    began_ms: int
    is_fenced: bool = False
    """True if every producer of the attempt is fenced."""


class BackfillRun(Struct, kw_only=True):
    """`run.json`."""

    run: str
    state: str
    """`sending`, `done`, `cancelling` (nothing more is sent, and the cancels are being written) or
    `cancelled`."""
    request: BackfillRequest
    planned_ms: int
    source: str
    """The delay topic that was archived."""
    origin: str
    """Its name in the ids and headers of the replays: in another cluster, behind Kafka's id of the
    archived one, because there may be a topic of the same name."""
    topic: str
    """The topic that the run sends to."""
    topic_id: str
    """Id of that topic: a topic of the same name with another id is another topic."""
    begin: dict[str, int]
    """Last stable offset of each of its partitions before anything was sent."""
    rows: list[int]
    """Number of rows of each part."""
    attempts: list[Attempt] = []

    @property
    def total(self) -> int:
        """Number of messages to send."""
        return sum(self.rows)

    @property
    def is_to_archived_topic(self) -> bool:
        """True if the run sends to the delay topic that was archived."""
        return self.topic == self.source and self.request.to_cluster is None


class PlanSample(Struct, frozen=True, kw_only=True):
    """One message of a plan, for people to look at."""

    source: str
    id: bytes
    target: str
    outcome: str
    due_ms: int
    bytes: int


class GonePartition(Struct, frozen=True, kw_only=True):
    """The messages of a plan of mode `gone` that one partition held when it was archived."""

    target: str
    partition: int | None
    """None: the archive does not hold their delivery, so their partition is not known."""
    deleted: int
    """Records before the partition's first offset: deleted by retention, or trimmed."""
    lost: int
    """Records that are not there for another reason: the topic was created again, or its log lost
    them."""
    log_start: int | None
    """The partition's first offset now; None: the topic or partition does not exist, or the
    partition is not known."""


class BackfillReport(Struct, frozen=True, kw_only=True):
    """`report.json`: the counts of a plan, or of an ended run."""

    run: str
    state: str
    """`planned`, `done`, `cancelling` or `cancelled`."""
    request: BackfillRequest
    messages: int
    """Messages in the plan; of an ended run: messages sent."""
    bytes: int
    """Sum of their payloads' sizes."""
    sent_before: int
    """Messages left out because they were sent before for the same purpose."""
    expired: int
    """Messages left out because they are past their `chronos-expire-at`."""
    too_large: int = 0
    """Messages left out because they exceed `max.message.bytes` of the topic they go to."""
    no_target: int = 0
    """Direct messages left out because the target does not exist, or is compacted and they have no
    key."""
    compacted: int = 0
    """Messages left out because their target is compacted."""
    first_due_ms: int | None
    last_due_ms: int | None
    outcomes: dict[str, int]
    targets: dict[str, int]
    """Messages by target; the targets with most messages."""
    absent_targets: list[str]
    """Targets that the brokers do not have: Chronos dead-letters their messages, a direct replay
    leaves them out."""
    samples: list[PlanSample]
    planned_ms: int
    judged: dict[str, int] = {}
    """All messages of the window for the requested targets and ids, by the audit's outcome."""
    changed_targets: dict[str, str] = {}
    """Targets that no longer hold what was archived from them: `deleted`, `recreated` or
    `truncated`."""
    gone: list[GonePartition] = []
    """Mode `gone`: the messages to send, by the partition that held them."""
    ended_ms: int | None = None
    attempts: int = 0
    cancels: int = 0
    """Messages of a cancelled run for which a cancel was written to the delay topic."""
    settled: int = 0
    """Of a restore: ids among `messages` that are sent as settled, without a message."""
    unknown: int = 0
    """Of a restore: messages that may have been delivered after the archive's end."""
    unknown_left_out: int = 0
    """Those of them that are not sent."""
    unarchived_targets: list[str] = []
    """Of a restore: targets of pending messages that are not in the archive."""
    archived_ms: int = 0
    """The end of the archive when the plan was made, epoch ms: messages due after it may be left
    out; 0: it had none yet."""


REPLAY_OF = "x-chronos-replay-of"
"""Header of a replay: `<delay topic>/<shard>/<offset>/<occurrence>` of the message it repeats."""

REPLAY_POSITION = "x-chronos-replay"
"""Header of a replay: `<run>/<part>/<row>`, its position in the plan."""

REPLAY_ID = "x-chronos-replay-id"
"""Header of a replay: the id of the original, if its producer gave it one."""

OWN = (REPLAY_OF, REPLAY_POSITION, REPLAY_ID)
"""Headers that backfill adds; a replay of a replay carries only its own."""

KEPT = (ATTEMPTS,)
"""Control headers of the original that its replay keeps."""

SERIES = (REPEAT, REPEAT_TIMES, REPEAT_UNTIL, TIME_ZONE, LATE_POLICY, SPREAD)
"""Control headers of a series that a replay keeps in mode `pending`, which carries the series
on."""


ID_PREFIX = "replay:"
"""The beginning of a replay's id."""


def id_prefix(purpose: str, to_topic: str | None) -> str:
    """The first part of a replay's id, before its original: a replay to one topic is not in
    conflict with one to the target or another topic."""
    return ID_PREFIX + (f"{purpose}:" if to_topic is None else f"{purpose}@{to_topic}:")


LEDGER = (
    "run string, purpose string, via string, shard int, source_offset long, occurrence int, "
    "outcome string, id binary, replay_id binary, target string, due_ms long, bytes long, "
    "destination string"
)
"""Columns of `rows`. `outcome`: the audit's outcome when the run was planned; `via`: `delay` or
`direct`; `target`: that of the original; `destination`: `BackfillRequest.destination`."""

PLANNED_COLUMNS = (
    "shard int, source_offset long, occurrence int, outcome string, id binary, key binary, target "
    "string, due_ms long, bytes long"
)
"""Columns of a plan that become part of the ledger."""

SETTLED = "settled"
"""The outcome, in a plan, of an id that a restore sends as settled."""

TOKEN = ("shard", "source_offset", "occurrence")
"""Columns that name one promised delivery."""


SENT = "sent"
"""Folder of the ledger of backfills."""

ROWS = f"{SENT}/rows"
"""Folder of the table of the messages sent."""


@contextmanager
def locked(storage: ArchiveStorage, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Keep backfills of the archive out, and others that change the ledger; ArchiveInUse if one
    still runs after `wait_s`."""
    with ArchiveStorage(storage.path(SENT)).locked(wait_s):
        yield


def run_folder(run: str) -> str:
    """Folder of a run, relative to the archive."""
    return f"{SENT}/run={run}"


def load_run(storage: ArchiveStorage, run: str) -> BackfillRun | None:
    """The run in `run.json`; None if there is no such file."""
    found = storage.read_json(f"{run_folder(run)}/run.json")
    return None if found is None else from_builtins(found, BackfillRun, strict=False)


def save_run(storage: ArchiveStorage, run: BackfillRun) -> None:
    """Write `run.json`."""
    storage.write_json(f"{run_folder(run.run)}/run.json", to_builtins(run))


def runs(storage: ArchiveStorage) -> list[str]:
    """Names of all runs, the oldest first."""
    return [name.removeprefix("run=") for name in storage.folders(SENT) if name.startswith("run=")]


def unfinished(storage: ArchiveStorage) -> BackfillRun | None:
    """The run that began to send, or to be cancelled, and has not ended. Plans that never began are
    removed."""
    for name in runs(storage):
        run = load_run(storage, name)
        if run is None:
            storage.remove(run_folder(name))
        elif run.state in ("sending", "cancelling"):
            return run
        else:
            remove_working_files(storage, name)
    return None


def remove_working_files(storage: ArchiveStorage, run: str) -> None:
    """Remove the files that only an unfinished run needs."""
    storage.remove(f"{run_folder(run)}/_plan")
    storage.remove(f"{run_folder(run)}/_begun")
    storage.remove(f"{run_folder(run)}/_rates")
    storage.remove(f"{run_folder(run)}/_cancel")


def plan_files(storage: ArchiveStorage, run: str) -> list[str]:
    """The files of the plan, in the order of its parts."""
    return [
        path for path, _ in storage.files(f"{run_folder(run)}/_plan") if path.endswith(".parquet")
    ]


def sent_rows(spark: SparkSession, storage: ArchiveStorage, destination: str = "") -> DataFrame:
    """The ledger of a destination, as `LEDGER`: what all ended runs sent there."""
    return all_rows(spark, storage).where(f.col("destination") == destination)


def all_rows(spark: SparkSession, storage: ArchiveStorage) -> DataFrame:
    """The ledger of all destinations, as `LEDGER`."""
    version = last_version(storage, ROWS)
    if version is None:
        return spark.createDataFrame([], LEDGER)
    return read(spark, storage, ROWS, version)


def write_rows(storage: ArchiveStorage, run: BackfillRun, sent: DataFrame, count: int) -> None:
    """Write the rows of a run, `PLANNED_COLUMNS` of the `count` messages it sent, in place of those
    of an attempt at its end that was killed."""
    create(storage, ROWS, StructType.fromDDL(LEDGER), partition="run", counted=["due_ms"])
    commit = append(
        storage,
        ROWS,
        ledger_rows(sent, run),
        writer=f"{run.run}/{uuid4().hex}",  # no attempt is taken for another
        number=0,
        in_place_of=f"run = '{run.run}'",
    )
    assert commit.rows == count, f"{commit.rows} rows of {count} messages"


def ledger_rows(sent: DataFrame, run: BackfillRun) -> DataFrame:
    """`PLANNED_COLUMNS` of the messages a run sent -> `LEDGER`."""
    request = run.request
    derived = f.concat(
        f.lit(id_prefix(request.purpose, request.to_topic)),
        f.concat_ws("/", f.lit(run.origin), *TOKEN),
    ).cast("binary")
    own = f.col("key").isNotNull() & f.lit(request.mode == "pending")
    return sent.withColumns(
        {
            "run": f.lit(run.run),
            "purpose": f.lit(request.purpose),
            "via": f.lit("direct" if request.direct else "delay"),
            "destination": f.lit(request.destination),
            "replay_id": f.col("id")
            if request.direct
            else f.when(own, f.col("id")).otherwise(derived),
        }
    ).select(*(column.split()[0] for column in LEDGER.split(", ")))


def check_ended(storage: ArchiveStorage) -> None:
    """Raise ArchiveFailed if a run is unfinished: its messages, and what it sent, are needed to
    complete it."""
    run = unfinished(storage)
    if run is not None:
        raise ArchiveFailed(
            f"backfill {run.run} is unfinished, and needs what it would erase: complete it with "
            f"`chronos backfill --resume`, or end it with `chronos backfill cancel {run.run}`"
        )


def remove_erased(
    spark: SparkSession, storage: ArchiveStorage, erased: DataFrame, messages: DataFrame
) -> None:
    """Remove the rows of messages that are in the table `erased`, and of which `messages` has no
    record left."""
    version = last_version(storage, ROWS)
    if version is None:
        return
    record = ["shard", "source_offset"]
    sent = read(spark, storage, ROWS, version).select(*record).distinct()
    records = messages.select("shard", f.col("offset").alias("source_offset"))
    gone = sent.join(erased.select(*record), record, "left_semi").join(records, record, "left_anti")
    if not gone.isEmpty():
        same = [f.col(f"kept.{name}") == f.col(f"gone.{name}") for name in record]
        table = table_at(spark, storage, ROWS).alias("kept")
        table.merge(gone.alias("gone"), same[0] & same[1]).whenMatchedDelete().execute()


def remove_ids(storage: ArchiveStorage, ids: Collection[bytes]) -> None:
    """Remove ids from the requests and the samples of ended runs."""
    texts = {each.hex() for each in ids}

    def without(request: BackfillRequest) -> BackfillRequest:
        kept = [each for each in request.ids if each not in texts]
        if len(kept) == len(request.ids):
            return request
        return structs.replace(request, ids=kept, options=[])

    for name in runs(storage):
        run = load_run(storage, name)
        if run is not None and (request := without(run.request)) is not run.request:
            save_run(storage, structs.replace(run, request=request))
        path = f"{run_folder(name)}/report.json"
        found = storage.read_json(path)
        if found is None:
            continue
        report = from_builtins(found, BackfillReport, strict=False)
        samples = [each for each in report.samples if each.id not in ids]
        request = without(report.request)
        if request is not report.request or len(samples) < len(report.samples):
            kept = structs.replace(report, request=request, samples=samples)
            storage.write_json(path, to_builtins(kept))


def record_started(storage: ArchiveStorage, run: str, attempt: int, part: int) -> bool:
    """Record that a task is about to take the transactional id of a part; True if no task of the
    attempt did so before."""
    path = f"{run_folder(run)}/_begun/{attempt:04}-{part:06}"
    is_first = not storage.exists(path)
    storage.write(path, b"")
    return is_first


def started_parts(storage: ArchiveStorage, run: str, attempt: int) -> list[int]:
    """The parts whose transactional ids an attempt may have taken."""
    names = (name for name, _ in storage.files(f"{run_folder(run)}/_begun"))
    return sorted(int(name[5:]) for name in names if name[:5] == f"{attempt:04}-")


def record_sent(storage: ArchiveStorage, run: str, part: int, until: int) -> None:
    """Record that a part was sent up to row `until`."""
    storage.write_json(f"{run_folder(run)}/_begun/until-{part:06}", until)


def rows_recorded(storage: ArchiveStorage, run: BackfillRun) -> list[int]:
    """For each part the number of rows that were sent at least, as its tasks recorded."""
    return [
        storage.read_json(f"{run_folder(run.run)}/_begun/until-{part:06}") or 0
        for part in range(len(run.rows))
    ]


def change_rate(storage: ArchiveStorage, run: str, from_ms: int, rate: float) -> None:
    """Record that a run sends `rate` messages per second from a time on. A change is a file of its
    own, so that commands that run at the same time overwrite nothing."""
    storage.write_json(f"{run_folder(run)}/_rates/{from_ms:015}-{uuid4().hex}", rate)


def rate_changes(storage: ArchiveStorage, run: str) -> list[tuple[int, float]]:
    """`(from_ms, messages per second)` of each change of a run's rate, in the order of time."""
    folder = f"{run_folder(run)}/_rates"
    names = [name for name, _ in storage.files(folder) if not name.startswith("_")]
    found = [(int(name[:15]), storage.read_json(f"{folder}/{name}")) for name in names]
    return [(from_ms, rate) for from_ms, rate in found if rate is not None]


def ask_to_cancel(storage: ArchiveStorage, run: str) -> None:
    """Record that a run is to be cancelled: the command that sends it ends, and none resumes it."""
    storage.write(f"{run_folder(run)}/_cancel/asked", b"")


def is_to_be_cancelled(storage: ArchiveStorage, run: BackfillRun) -> bool:
    """True if somebody has asked to cancel the run, and it is not cancelled yet."""
    return run.state == "cancelling" or storage.exists(f"{run_folder(run.run)}/_cancel")


def ids_sent(spark: SparkSession, storage: ArchiveStorage, run: str) -> DataFrame:
    """Column `replay_id` of the messages that an ended run sent through the delay topic."""
    rows = all_rows(spark, storage)
    is_message = (f.col("via") == "delay") & (f.col("outcome") != SETTLED)
    return rows.where((f.col("run") == run) & is_message).select("replay_id")


def transactional_id(cluster: str, run: str, attempt: int, part: int) -> str:
    """Transactional id of the producer of a part."""
    return f"chronos-backfill-{cluster}-{run}-{attempt}-{part}"


def rows_committed(positions: DataFrame, run: BackfillRun) -> list[int]:
    """Column `position` with `REPLAY_POSITION` of records as text -> for each part of the run, rows
    committed to the log."""
    own = positions.where(f.col("position").startswith(f"{run.run}/"))
    at = f.split("position", "/")
    numbers = own.select(at[1].cast("int").alias("part"), at[2].cast("long").alias("row"))
    found: dict[Any, Any] = {
        row["part"]: row["last"] + 1
        for row in numbers.groupBy("part").agg(f.max("row").alias("last")).collect()
    }
    return [found.get(part, 0) for part in range(len(run.rows))]


def check_log(
    run: BackfillRun,
    topic_id: str | None,
    starts: dict[int, int],
    archived: dict[int, int],
    gaps: Iterable[int],
) -> None:
    """Raise ArchiveFailed unless the log and the archive together still hold every record since the
    run began."""
    why = None
    if topic_id != run.topic_id:
        why = f"{run.topic} was deleted and created again since"
    for partition, begin in run.begin.items():
        shard = int(partition)
        start = starts.get(shard, 0)
        if start > begin and (archived.get(shard, 0) < start or shard in gaps):
            why = f"{run.topic}/{shard} was trimmed to offset {start} before it was archived"
    if why is not None:
        raise ArchiveFailed(
            f"it cannot be determined how much of run {run.run} was sent: {why}. `chronos "
            f"backfill cancel {run.run}` counts all of it as sent; messages that are then missing "
            "can be sent for another --purpose"
        )
