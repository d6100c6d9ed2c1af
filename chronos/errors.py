"""The errors of the service, grouped by what to do about them.

    ChronosError
    ├── Stop                     the process must stop; `exit_code` says how
    │   ├── ConfigurationError   2: a setting is wrong; every problem is listed
    │   ├── StoreCorrupt         5: bytes of the store are damaged, missing or of an unknown format
    │   ├── StoreInUse           1: another process holds the data directory
    │   ├── LogMismatch          1: log and store do not belong together, or a newer version wrote one of them
    │   ├── Deposed              1: another standalone node took over this shard
    │   ├── NodeIdTaken          1: another data directory serves the cluster under this node's id
    │   ├── SparkMissing         3: PySpark, Java or the connector is not installed
    │   ├── ArchiveInUse         1: another process writes to the archive
    │   └── ArchiveUnusable      1: the location cannot hold an archive, holds another cluster's, topic's or format's, or lost files
    └── Retry                    nothing was lost; the same call may be tried again
        ├── LogUnavailable       3: no broker answers, or not in time
        │   └── BatchUnreadable  3: a batch of records is damaged, or cannot be decompressed within bounds
        ├── NoSpace              1: the disk is below its reserve, or full
        ├── ClockDisagrees       1: this machine's clock and the broker's differ
        ├── TransactionAborted   1: the transaction was aborted; `poison_likely` says if a message caused it
        ├── ProducerLost         1: the producer is unusable: make a new one and recover
        ├── ApplyFailed          1: the store failed to write what is committed: replay it from the log
        ├── CoordinatorUnavailable  3: the coordinator does not answer, or not in time
        │   └── CoordinatorFull      3: what it would have to store is too large: no role changes
        ├── RoleStale            1: another node wrote progress with the same or a later role epoch
        └── ArchiveFailed        1: the archive could not be read or written; its contents stay

A message that must be refused is not an exception but a value, `core.message.Rejection`. Errors of
the libraries behind the ports become these in `adapters/` and nowhere else, those of Spark in
`spark/`. The clients of the HTTP interface have errors of their own (`client.models`)."""  # noqa: E501

from collections.abc import Sequence


class ChronosError(Exception):
    """Root of the tree. The text says what happened and what to do about it."""

    exit_code = 1


class Stop(ChronosError):
    """The process must stop; starting it again without a change does not help."""


class ConfigurationError(Stop):
    """One or more settings are wrong. `problems` holds one line for each, all of them at once."""

    exit_code = 2

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class StoreCorrupt(Stop):
    """Bytes in the store are damaged, missing, or of a format this version does not know."""

    exit_code = 5


class StoreInUse(Stop):
    """Another process has the data directory open."""


class LogMismatch(Stop):
    """A topic was recreated, trimmed ahead of the store, given another number of partitions, or has
    unknown records; or a newer version of Chronos wrote it, the store or the roles."""


class Deposed(Stop):
    """Another node committed to this shard after this one took it over."""


class NodeIdTaken(Stop):
    """Another data directory is a member of the cluster under this node's id."""


class SparkMissing(Stop):
    """Spark cannot be started: PySpark, Java or the Kafka connector is missing. The text says what
    to install."""

    exit_code = 3


class ArchiveInUse(Stop):
    """Another process writes to the archive."""


class ArchiveUnusable(Stop):
    """The location cannot hold an archive, holds the archive of another cluster, topic or format,
    or has lost files."""


class Retry(ChronosError):
    """Nothing was lost. The same call may be tried again, later or with a new client."""


class LogUnavailable(Retry):
    """The log did not answer in time."""

    exit_code = 3


class BatchUnreadable(LogUnavailable):
    """The next batch of a partition cannot be decompressed within bounds, or is damaged; every
    reader would fail there.

    `offset` is an offset of the batch. The master decides what follows: see `workers.step.pull`.
    """

    def __init__(self, text: str, *, offset: int) -> None:
        self.offset = offset
        super().__init__(text)


class NoSpace(Retry):
    """The free space is below the reserve, or a write failed because the disk is full."""


class ClockDisagrees(Retry):
    """The broker's clock and this machine's differ by more than law 2 allows.

    `aborted` is true if a transaction was aborted because of it.
    """

    def __init__(self, text: str, *, aborted: bool = False) -> None:
        self.aborted = aborted
        super().__init__(text)


class TransactionAborted(Retry):
    """The transaction was aborted and the producer may be used again.

    `poison_likely` is true if the broker refused a message for a property of its own (its size, its
    topic), false if a broker was slow or gone: after a time-out no message is suspected.
    `too_large` is true if the property was the size."""

    def __init__(self, text: str, *, poison_likely: bool, too_large: bool = False) -> None:
        self.poison_likely = poison_likely
        self.too_large = too_large
        super().__init__(text)


class ProducerLost(Retry):
    """The producer was fenced, timed out or failed: only the progress log shows whether its last
    transaction committed.

    `poison_likely` means the same as for TransactionAborted: some refusals also make the producer
    unusable."""

    too_large = False

    def __init__(self, text: str, *, poison_likely: bool = False) -> None:
        self.poison_likely = poison_likely
        super().__init__(text)


class ApplyFailed(Retry):
    """A write to the store failed, possibly that of a committed step: start again from the store
    and replay the log."""


class CoordinatorUnavailable(Retry):
    """The coordinator did not answer in time: roles stay as they are, and none is assigned."""

    exit_code = 3


class CoordinatorFull(CoordinatorUnavailable):
    """The coordinator cannot store the roles or requests, which are too large: no role changes
    until nodes are forgotten."""


class RoleStale(Retry):
    """Another node wrote a progress record with the same or a greater role epoch: wait for a newer
    role."""


class ArchiveFailed(Retry):
    """The archive could not be read or written. Its contents stay; the same command continues where
    it stopped."""
