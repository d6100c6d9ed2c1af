"""A half of the node: the thread that makes checkpoints and trims the logs, and the stores that begin with one.

It may take minutes with a large store, so it has a thread of its own; nothing else waits for it.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from chronos.adapters.checkpoints.files import Copier
from chronos.adapters.checkpoints.folder import CheckpointFolder
from chronos.config import Config
from chronos.core.codec import Identity
from chronos.errors import ChronosError, Retry, StoreCorrupt
from chronos.node.driver import ShardDriver
from chronos.ports import Checkpoint, Clock, TopicLog
from chronos.workers.checkpoint import Checkpointer, LogPosition

log = structlog.get_logger("chronos.checkpoints")

LOOK_S = 1.0
"""How often the thread looks whether a checkpoint is due, or was asked for."""

STOP_S = 30.0
"""How long the end of the process waits for a checkpoint that is being made."""


class CheckpointScheduler:
    """The checkpoints of this node's shards."""

    def __init__(
        self,
        config: Config,
        log_port: TopicLog,
        clock: Clock,
        *,
        copier: Copier,
        failed: Callable[[ChronosError], None],
    ) -> None:
        assert config.checkpoints.location is not None
        self.checkpointers: dict[int, Checkpointer] = {}
        self._config = config
        self._log = log_port
        self._clock = clock
        self._failed = failed
        self._folder = CheckpointFolder(
            config.checkpoints.location, config.cluster, copier, data_dir=Path(config.node.data_dir)
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    # --- a store that begins with one

    def restore(self, number: int, identity: Identity, into: Path) -> Checkpoint | None:
        """Make a store of the newest checkpoint; None when there is none. StoreCorrupt: all damaged; Retry."""
        return self._folder.restore(number, identity, into)

    # --- while the node runs

    def add(
        self,
        shard: ShardDriver,
        identity: Identity,
        *,
        replicas: Callable[[], Sequence[LogPosition | None]],
        trims: Callable[[], bool],
    ) -> None:
        """Keep checkpoints of this shard."""
        settings = self._config.checkpoints
        self.checkpointers[shard.number] = Checkpointer(
            self._folder,
            self._log,
            shard.store,
            shard=shard.number,
            identity=identity,
            every_ms=settings.every,
            keep=settings.keep,
            keep_logs_ms=settings.keep_logs,
            replicas=replicas,
            archived=lambda topic, partition: self._log.committed(f"{self._config.cluster}-archive", topic, partition),
            trims=trims,
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End it after the checkpoint under way."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def problems(self) -> Mapping[int, str]:
        """Why the last attempt failed, by shard."""
        return {number: each.problem for number, each in self.checkpointers.items() if each.problem is not None}

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            for number, checkpointer in self.checkpointers.items():
                if self._stopping.is_set():
                    return
                try:
                    checkpointer.step(self._clock.now_ms())
                except Retry as error:
                    log.warning("no checkpoint", shard=number, why=str(error))
                except StoreCorrupt as error:
                    self._failed(error)
                    return
                except ChronosError as error:
                    log.error("no checkpoint", shard=number, why=str(error))
                except Exception as error:
                    # Nothing may end in silence, and no message waits for a checkpoint.
                    log.exception("no checkpoint", shard=number, why=repr(error))
