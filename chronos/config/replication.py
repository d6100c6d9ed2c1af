"""The section `replication`."""

from typing import Literal

from chronos.config.section import Section, key
from chronos.config.values import Duration


class ReplicationConfig(Section):
    """Followers that are ready to take a shard over. They bound the time of a failover; messages are safe in Kafka without them."""

    mode: Literal["async", "sync"] = key(
        "async",
        "`async`: a shard needs no follower. `sync`: a shard with fewer than `min_in_sync` followers in sync is reported, and "
        "`on_too_few` applies to it. The same on all nodes, as all of this section.",
    )
    min_in_sync: int = key(
        1,
        "Followers in sync that a shard needs with `mode: sync`, the master not counted. With 1, one node may fail at any time and "
        "another is ready.",
        least=1, most=99,
    )  # fmt: skip
    max_lag: Duration = key(
        "10s",
        "A follower is in sync if it has applied everything that its master had applied this time ago. A longer time hides brief "
        "delays; a new master may have to replay that much of the log first.",
        least="2s", most="10m",
    )  # fmt: skip
    on_too_few: Literal["warn", "refuse"] = key(
        "refuse",
        "What happens with `mode: sync` to messages for a shard with too few followers in sync. `refuse`: `POST /v1/messages` answers "
        "503. `warn`: they are accepted. Records that Kafka clients write to the delay topic are always accepted.",
    )
