"""The progress of a Spark job, as values: which step it is in, and how much of the step is done.

Not a display: the command line decides how steps are shown. The jobs call a `Watch` from threads of the driver, when a
step begins and whenever its count grows.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Step(Struct, frozen=True, kw_only=True):
    """One step of a job; two values with the same name are the same step."""

    name: str
    """What the job does, in the present participle: `archiving messages`."""
    done: int = 0
    """Units done so far."""
    total: int | None = None
    """Units there are; None: not counted."""
    unit: str = ""
    """What is counted: `offsets`, `messages`."""


Watch = Callable[[Step], None]
"""Called with the step a job is in."""


def ignore(_: Step) -> None:
    """A `Watch` that shows nothing."""


def running_tasks(spark: "SparkSession") -> tuple[int, int]:
    """Tasks that have ended, and all tasks, of the stages that Spark runs now; `(0, 0)` when it runs none."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    running = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in running), sum(stage.numTasks for stage in running)
