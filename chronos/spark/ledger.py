"""What backfill sent, and how it never sends anything twice: `sent/` in the archive.

    sent/run=<run>/run.json        the run: what was asked for, how far it is, its attempts
    sent/run=<run>/_plan/          what is to be sent, payloads and all, in order: written before anything is sent
    sent/run=<run>/rows/           what was sent: the ledger, `LEDGER`; there once the run has ended
    sent/run=<run>/report.json     the same in numbers

1. Consulted first. A message is left out of the plan if the rows of any run that has ended hold its token
   `(shard, source_offset, occurrence)` for the same purpose. A run that has not ended is ended before another is planned.
2. The log itself says how far a run is. A part of the plan is one file, sent in its order in transactions by one
   producer; each record carries run, part and row (`REPLAY_PLACE`). So the last committed row of a part in the delay
   topic (or, where that was trimmed, in the archived messages) says where the part goes on, whatever was killed.
3. Nobody of an earlier attempt writes meanwhile. A task names its part, takes its transactional id, then looks whether
   its attempt is still the last one. A new attempt is written down first, then takes the ids of all named parts, which
   fences their producers and resolves their transactions, and only then reads the log. Tasks are never run again
   by Spark: a second try at one ends the attempt, and the next takes stock.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, to_builtins
from msgspec import convert as from_builtins
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from chronos.errors import ArchiveFailed
from chronos.spark.storage import Place

SENT = "sent"

REPLAY_OF = "x-chronos-replay-of"
"""Header of a replayed message, for whoever reads it: `<delay topic>/<shard>/<offset>/<occurrence>` of what it repeats."""

REPLAY_PLACE = "x-chronos-replay"
"""Header of a replayed message: `<run>/<part>/<row>`, its place in what was sent."""

REPLAY_ID = "x-chronos-replay-id"
"""Header of a replayed message: the id that the original had, if its producer gave it one."""

OWN = (REPLAY_OF, REPLAY_PLACE, REPLAY_ID)

ID_PREFIX = "replay"
"""Of a replay's id: `replay:<purpose>:<delay topic>/<shard>/<offset>/<occurrence>`."""

LEDGER = (
    "run string, purpose string, via string, shard int, source_offset long, occurrence int, outcome string, id binary,"
    " replay_id binary, target string, due_ms long, bytes long"
)
"""Columns of `rows`. `outcome`: what the audit said when the run was planned; `via`: `delay` or `direct`."""

UNIT_COLUMNS = (
    "shard int, source_offset long, occurrence int, outcome string, id binary, key binary, target string, due_ms long,"
    " bytes long"
)
"""Columns of a plan that the ledger keeps."""

TOKEN = ("shard", "source_offset", "occurrence")


class Request(Struct, frozen=True, kw_only=True):
    """What is to be replayed, and how."""

    mode: str
    """`missing`, `all`, `gone` or `pending`."""
    from_ms: int | None = None
    to_ms: int | None = None
    """The window of due times, `to_ms` not included."""
    targets: list[str] = []
    """Names or shell-style patterns; none: all."""
    headers: list[tuple[str, str]] = []
    """Each of them must be there with this value."""
    ids: list[str] = []
    """In hexadecimal; none: all."""
    purpose: str = "backfill"
    """Nothing is sent twice for the same purpose."""
    direct: bool = False
    """Straight to the targets."""
    over_ms: int | None = None
    """Due times are spread over this time."""
    rate: float | None = None
    """So many a second."""
    expired: bool = False
    """Also what is past its `chronos-expire-at`."""
    said: list[str] = []
    """As it was asked for: whether the same is asked again."""


class Attempt(Struct, kw_only=True):
    """One try at sending a run."""

    number: int
    began_ms: int
    is_fenced: bool = False
    """Nobody of it can write any more."""


class Run(Struct, kw_only=True):
    """`run.json`."""

    run: str
    state: str
    """`sending`, `done` or `abandoned`."""
    request: Request
    planned_ms: int
    source: str
    """The delay topic that was archived."""
    topic: str
    """The one that is sent to."""
    topic_id: str
    """Of that: another one is another topic of the same name."""
    begin: dict[str, int]
    """Where each partition of it ended before anything was sent."""
    rows: list[int]
    """Rows of each part."""
    attempts: list[Attempt] = []

    @property
    def total(self) -> int:
        """Rows to be sent."""
        return sum(self.rows)


class Sample(Struct, frozen=True, kw_only=True):
    """One message of a plan, to look at."""

    source: str
    id: bytes
    target: str
    outcome: str
    due_ms: int
    bytes: int


class Report(Struct, frozen=True, kw_only=True):
    """What is to be sent, or was: `report.json`."""

    run: str
    state: str
    """`planned`, `sending`, `done` or `abandoned`."""
    request: Request
    messages: int
    """In the plan; of a run that has ended: sent."""
    bytes: int
    """Of their payloads."""
    sent_before: int
    """Left out: sent before, for the same purpose."""
    expired: int
    """Left out: past their `chronos-expire-at`."""
    too_large: int = 0
    """Left out: larger than the topic they go to takes."""
    no_target: int = 0
    """Left out of what goes straight to its target: that is not there, or is compacted and takes none without a key."""
    first_due_ms: int | None
    last_due_ms: int | None
    outcomes: dict[str, int]
    targets: dict[str, int]
    """The largest ones."""
    absent_targets: list[str]
    """Those that the brokers did not have: Chronos would dead-letter what is for them; straight to them it is left out."""
    samples: list[Sample]
    planned_ms: int
    ended_ms: int | None = None
    attempts: int = 0


def folder(run: str) -> str:
    """Of a run, below the archive."""
    return f"{SENT}/run={run}"


def load_run(place: Place, run: str) -> Run | None:
    """What `run.json` says; None where there is none."""
    found = place.read_json(f"{folder(run)}/run.json")
    return None if found is None else from_builtins(found, Run, strict=False)


def save_run(place: Place, run: Run) -> None:
    """Write `run.json`."""
    place.write_json(f"{folder(run.run)}/run.json", to_builtins(run))


def runs(place: Place) -> list[str]:
    """Names of all runs, the oldest first."""
    return [name.removeprefix("run=") for name in place.folders(SENT) if name.startswith("run=")]


def unfinished(place: Place) -> Run | None:
    """The run that began to send and has not ended. What was planned and never begun is removed."""
    for name in runs(place):
        run = load_run(place, name)
        if run is None:
            place.remove(folder(name))
        elif run.state == "sending":
            return run
        else:
            clear(place, name)
    return None


def clear(place: Place, run: str) -> None:
    """Remove what only a run that has not ended needs."""
    place.remove(f"{folder(run)}/_plan")
    place.remove(f"{folder(run)}/_begun")


def parts(place: Place, run: str) -> list[str]:
    """The files of the plan, in the order of its parts."""
    return [path for path, _ in place.files(f"{folder(run)}/_plan") if path.endswith(".parquet")]


def sent_rows(spark: SparkSession, place: Place) -> DataFrame:
    """`LEDGER` of all runs."""
    found = [place.path(folder(name), "rows") for name in runs(place) if place.exists(f"{folder(name)}/rows/_SUCCESS")]
    if not found:
        return spark.createDataFrame([], LEDGER)
    return spark.read.schema(LEDGER).parquet(*found)


def rows_of(units: DataFrame, run: Run) -> DataFrame:
    """`UNIT_COLUMNS` of what was sent -> `LEDGER`."""
    request = run.request
    derived = f.concat(
        f.lit(f"{ID_PREFIX}:{request.purpose}:"), f.concat_ws("/", f.lit(run.source), *TOKEN)
    ).cast("binary")  # fmt: skip
    own = f.col("key").isNotNull() & f.lit(request.mode == "pending")
    return units.withColumns(
        {
            "run": f.lit(run.run), "purpose": f.lit(request.purpose), "via": f.lit("direct" if request.direct else "delay"),
            "replay_id": f.col("id") if request.direct else f.when(own, f.col("id")).otherwise(derived),
        }
    ).select(*(column.split()[0] for column in LEDGER.split(", ")))  # fmt: skip


def note_begun(place: Place, run: str, attempt: int, part: int) -> bool:
    """A task is about to take the transactional id of a part. Whether it is the first one of the attempt."""
    path = f"{folder(run)}/_begun/{attempt:04}-{part:06}"
    is_first = not place.exists(path)
    place.write(path, b"")
    return is_first


def begun(place: Place, run: str, attempt: int) -> list[int]:
    """The parts whose ids were taken in an attempt."""
    names = (name for name, _ in place.files(f"{folder(run)}/_begun"))
    return sorted(int(name[5:]) for name in names if name[:5] == f"{attempt:04}-")


def note_sent(place: Place, run: str, part: int, until: int) -> None:
    """How far a part was sent straight to its targets."""
    place.write_json(f"{folder(run)}/_begun/until-{part:06}", until)


def noted(place: Place, run: Run) -> list[int]:
    """For each part how far it was sent straight to its targets, by what tasks noted."""
    return [place.read_json(f"{folder(run.run)}/_begun/until-{part:06}") or 0 for part in range(len(run.rows))]


def transactional_id(cluster: str, run: str, attempt: int, part: int) -> str:
    """Of the producer of a part."""
    return f"{cluster}-backfill-{run}-{attempt}-{part}"


def rows_below(places: DataFrame, run: Run) -> list[int]:
    """Column `place` of records, `REPLAY_PLACE` as text -> how far each part of the run is in the log."""
    own = places.where(f.col("place").startswith(f"{run.run}/"))
    at = f.split("place", "/")
    numbers = own.select(at[1].cast("int").alias("part"), at[2].cast("long").alias("row"))
    found: dict[Any, Any] = {
        row["part"]: row["last"] + 1 for row in numbers.groupBy("part").agg(f.max("row").alias("last")).collect()
    }
    return [found.get(part, 0) for part in range(len(run.rows))]


def check_log(
    run: Run, topic_id: str | None, starts: dict[int, int], archived: dict[int, int], gaps: Iterable[int]
) -> None:
    """Whether the log and the archive together still hold everything since the run began; ArchiveFailed if not."""
    why = None
    if topic_id != run.topic_id:
        why = f"{run.topic} was deleted and made again since"
    for partition, begin in run.begin.items():
        shard = int(partition)
        start = starts.get(shard, 0)
        if start > begin and (archived.get(shard, 0) < start or shard in gaps):
            why = f"{run.topic}/{shard} was trimmed to offset {start} before it was archived"
    if why is not None:
        raise ArchiveFailed(
            f"nobody knows how much of run {run.run} was sent: {why}. `chronos backfill --abandon` counts all of it as"
            " sent; what the audit then finds missing can be sent for another --purpose"
        )
