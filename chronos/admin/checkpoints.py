"""Checkpoints over HTTP: the list, and new ones on request."""

from chronos.admin.context import Call, Context
from chronos.admin.problems import ProblemError
from chronos.admin.schemas import CheckpointInfo, CheckpointsInfo, ShardCheckpoints
from chronos.core.timefmt import format_time
from chronos.node.checkpointing import CheckpointScheduler


class CheckpointHandlers:
    """The handlers of `/v1/checkpoints`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def kept(self, _: Call) -> tuple[int, object]:
        """The checkpoints of every shard, as this node last read them."""
        return 200, self._info(self._scheduler())

    async def make(self, _: Call) -> tuple[int, object]:
        """Request a checkpoint of every shard of this node; they are made in the background."""
        scheduler = self._scheduler()
        for checkpointer in scheduler.checkpointers.values():
            checkpointer.ask()
        return 202, self._info(scheduler)

    def _scheduler(self) -> CheckpointScheduler:
        scheduler = self._context.node.checkpoints
        if scheduler is None:
            raise ProblemError(
                501,
                "no-checkpoints",
                "checkpoints.location is not set",
                hint="set it to a directory or to a URL of fsspec",
            )
        return scheduler

    @staticmethod
    def _info(scheduler: CheckpointScheduler) -> CheckpointsInfo:
        return CheckpointsInfo(
            shards=[
                ShardCheckpoints(
                    shard=number,
                    problem=checkpointer.problem,
                    checkpoints=[
                        CheckpointInfo(
                            name=found.name, node=found.node, made_at=format_time(found.made_at_ms),
                            applied=found.applied, pull_offset=found.pull_offset, pending=found.pending,
                            digest=found.digest, bytes=found.size_bytes,
                        )
                        for found in checkpointer.kept
                    ],
                )
                for number, checkpointer in sorted(scheduler.checkpointers.items())
            ]
        )  # fmt: skip
