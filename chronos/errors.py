"""Every error Chronos raises, grouped by what the one who catches it must do.

    ChronosError
    ├── Stop                     the process must stop; `exit_code` says how
    │   ├── ConfigurationError   2: a setting is wrong; every problem is listed
    │   ├── StoreCorrupt         5: bytes of the store are damaged or unknown
    │   ├── StoreInUse           1: another process holds the data directory
    │   ├── LogMismatch          1: the log is not the one the store was built from
    │   ├── Deposed              1: another node is master of this shard
    │   ├── NodeIdTaken          1: another data directory serves the cluster under this node's id
    │   ├── SparkMissing         3: PySpark, Java or the connector is not installed
    │   ├── ArchiveInUse         1: another process writes to the archive
    │   └── ArchiveUnusable      1: the location is no place for an archive, or holds that of another cluster, topic or format
    └── Retry                    nothing was lost; the same thing may be tried again
        ├── LogUnavailable       3: no broker answers, or not in time
        ├── NoSpace              1: the disk is below its reserve, or full
        ├── ClockDisagrees       1: this machine's clock and the broker's differ
        ├── TransactionAborted   1: the transaction was aborted, cleanly; `poison_likely` says whose fault
        ├── ProducerLost         1: the producer is unusable: make a new one and recover
        ├── ApplyFailed          1: the store failed to write what is committed: replay it from the log
        ├── CoordinatorUnavailable  3: the coordinator does not answer, or not in time
        ├── RoleStale            1: the progress log knows a later role than the one this node was given
        └── ArchiveFailed        1: the archive could not be read or written; what is in it stays

A message that must be refused is no exception: it is a value, `core.message.Rejection`.
Errors of third-party clients are translated in `adapters/` and nowhere else.
"""

from collections.abc import Sequence


class ChronosError(Exception):
    """Root of the tree. The text says what happened and what to do about it."""

    exit_code = 1


class Stop(ChronosError):
    """The process cannot go on; starting it again without a change will not help."""


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
    """A topic was recreated, trimmed ahead of the store, or given another number of partitions."""


class Deposed(Stop):
    """Another node committed to this shard after this one took it over."""


class NodeIdTaken(Stop):
    """Another data directory is a member of the cluster under this node's id."""


class SparkMissing(Stop):
    """Spark cannot be started: PySpark, Java or the Kafka connector is not there. The text says what to install."""

    exit_code = 3


class ArchiveInUse(Stop):
    """Another process writes to the archive."""


class ArchiveUnusable(Stop):
    """The location is no place for an archive, or holds that of another cluster, topic or format."""


class Retry(ChronosError):
    """Nothing was lost. The same thing may be tried again, later or with a new client."""


class LogUnavailable(Retry):
    """The log did not answer in time."""

    exit_code = 3


class NoSpace(Retry):
    """The disk holds less than the reserve, or a write failed for want of space."""


class ClockDisagrees(Retry):
    """The broker's clock and this machine's differ by more than law 2 allows.

    `aborted` is true when that cost a transaction.
    """

    def __init__(self, text: str, *, aborted: bool = False) -> None:
        self.aborted = aborted
        super().__init__(text)


class TransactionAborted(Retry):
    """The transaction was aborted and the producer may be used again.

    `poison_likely` is true when the broker refused a message for what it is (its size, its topic),
    false when a broker was slow or gone: a time-out makes nobody a culprit.
    """

    def __init__(self, text: str, *, poison_likely: bool) -> None:
        self.poison_likely = poison_likely
        super().__init__(text)


class ProducerLost(Retry):
    """Fenced, timed out, or fatal: whether the last transaction committed is known from the progress log only.

    `poison_likely` as with TransactionAborted: some refusals cost the producer too.
    """

    def __init__(self, text: str, *, poison_likely: bool = False) -> None:
        self.poison_likely = poison_likely
        super().__init__(text)


class ApplyFailed(Retry):
    """The store failed to write, perhaps what was committed: start again from what it holds, and replay."""


class CoordinatorUnavailable(Retry):
    """The coordinator did not answer in time: roles stay as they are, and nobody gets a new one."""

    exit_code = 3


class RoleStale(Retry):
    """The progress log holds a record of another node with a role epoch that is not smaller: wait for a newer role."""


class ArchiveFailed(Retry):
    """The archive could not be read or written. What is in it stays; the same command goes on where it stopped."""
