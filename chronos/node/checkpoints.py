"""The thread of a node that makes the checkpoints of its shards and trims the logs, as
`workers.replica.checkpoint` decides; and the fetching of a checkpoint from which a store is
restored.

A checkpoint of a large store takes minutes, so no shard waits for this thread, and a stop of the
node waits at most STOP_S."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from chronos.adapters.checkpoints.files import Copier
from chronos.adapters.checkpoints.folder import CheckpointFolder
from chronos.config import Config
from chronos.core.shard.codec import Identity
from chronos.errors import ChronosError, Retry, StoreCorrupt
from chronos.node.shards import ShardDriver
from chronos.ports import Checkpoint, Clock, TopicLog
from chronos.workers.replica.checkpoint import (
    Checkpointer,
    CheckpointSettings,
    LogPosition,
    Trimming,
)

log = structlog.get_logger("chronos.checkpoints")

CHECK_EVERY_S = 1.0
"""How often the thread checks whether a checkpoint is due or was asked for."""

STOP_S = 30.0
"""How long a stop waits for a checkpoint that is being made."""


class CheckpointScheduler:
    """Makes the checkpoints of this node's shards, and restores stores from them."""

    def __init__(
        self,
        config: Config,
        log_port: TopicLog,
        clock: Clock,
        *,
        copier: Copier,
        failed: Callable[[ChronosError], None],
    ) -> None:
        """`failed`: called with the error when a store is found to be damaged, which ends the
        thread."""
        assert config.checkpoints.location is not None
        self.checkpointers: dict[int, Checkpointer] = {}
        """By shard."""
        self._config = config
        self._log = log_port
        self._clock = clock
        self._failed = failed
        self._folder = CheckpointFolder(
            config.checkpoints.location, config.cluster, copier, data_dir=Path(config.node.data_dir)
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def restore(self, shard: int, identity: Identity, into: Path) -> Checkpoint | None:
        """Copy the newest checkpoint into a folder; None when there is none. Raises StoreCorrupt
        (all damaged), Retry."""
        return self._folder.restore(shard, identity, into)

    def add(
        self,
        shard: ShardDriver,
        identity: Identity,
        *,
        replicas: Callable[[], Sequence[LogPosition | None]],
        trims: Callable[[], bool],
    ) -> None:
        """Make checkpoints of this shard, once the thread runs. `replicas`, `trims`: see
        `workers.replica.checkpoint`."""
        settings = self._config.checkpoints
        self.checkpointers[shard.number] = Checkpointer(
            self._folder,
            self._log,
            shard.store,
            identity=identity,
            settings=CheckpointSettings(
                every_ms=settings.every, keep=settings.keep, keep_logs_ms=settings.keep_logs
            ),
            trimming=Trimming(
                replicas=replicas,
                archived=lambda topic, partition: self._log.committed(
                    f"{self._config.cluster}-archive", topic, partition
                ),
                trims=trims,
            ),
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the checkpoint that is being made."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def problems(self) -> Mapping[int, str]:
        """Return, by shard, why the last attempt failed; shards without a failure are left out."""
        return {
            number: checkpointer.problem
            for number, checkpointer in self.checkpointers.items()
            if checkpointer.problem is not None
        }

    def _run(self) -> None:
        while not self._stopping.wait(CHECK_EVERY_S):
            for number, checkpointer in self.checkpointers.items():
                if self._stopping.is_set():
                    return
                try:
                    checkpointer.step(self._clock.now_ms())
                except Retry as error:
                    log.warning("checkpoint failed", shard=number, why=str(error))
                except StoreCorrupt as error:
                    self._failed(error)
                    return
                except ChronosError as error:
                    log.error("checkpoint failed", shard=number, why=str(error))
                except Exception as error:
                    # The thread must not end unnoticed, and no message waits for a checkpoint: try
                    # again.
                    log.exception("checkpoint failed", shard=number, why=repr(error))
