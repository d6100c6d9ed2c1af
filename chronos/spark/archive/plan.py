"""The parameters of a run of the archive."""

from msgspec import Struct


class ArchivePlan(Struct, frozen=True, kw_only=True):
    """The topics to archive, and how to read them."""

    cluster: str
    bootstrap_servers: str
    delay: str
    progress: str
    rejected: str
    dead_letter: str
    targets: list[str] | None = None
    """Names or shell-style patterns of target topics; None: those that messages name."""
    all_records: bool = False
    """True to archive records of target topics that Chronos did not deliver too."""
    batch_records: int = 2_000_000
    """Most records of one micro-batch."""
    other_cluster: bool = False
    """True to accept a Kafka cluster with another id than that of the archive."""
    reader: dict[str, str] = {}
    """Further options of Spark's Kafka source."""
