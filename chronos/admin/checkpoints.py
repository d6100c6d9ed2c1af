"""Checkpoints over HTTP: what there is, and one on demand."""

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
        """The checkpoints of every shard, as this node saw them last."""
        return 200, self._found(self._keeping())

    async def make(self, _: Call) -> tuple[int, object]:
        """Make one of every shard of this node now; it takes a while."""
        keeping = self._keeping()
        for checkpointer in keeping.checkpointers.values():
            checkpointer.ask()
        return 202, self._found(keeping)

    def _keeping(self) -> CheckpointScheduler:
        keeping = self._context.node.checkpoints
        if keeping is None:
            raise ProblemError(
                501, "no-checkpoints", "checkpoints.location is not set", hint="set it to a folder or a URL of fsspec"
            )
        return keeping

    @staticmethod
    def _found(keeping: CheckpointScheduler) -> CheckpointsInfo:
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
                for number, checkpointer in sorted(keeping.checkpointers.items())
            ]
        )  # fmt: skip
