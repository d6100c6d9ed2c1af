"""The section `registry`: the intervals of RocketMQ's NameServer are its defaults."""

from chronos.config.section import Section, key
from chronos.config.values import Duration


class RegistryConfig(Section):
    """The registry of nodes and routes that every node serves, and the registration of this node with those of all nodes."""

    register_after: Duration = key(
        "10s",
        "How long after its start a node registers with the other nodes at the latest. It registers at once when its roles change.",
        least="100ms", most="1h",
    )  # fmt: skip
    register_every: Duration = key(
        "30s",
        "How often a node registers although nothing has changed: a registry that has lost a node has it again after this time.",
        least="100ms", most="1h",
    )  # fmt: skip
    scan_after: Duration = key(
        "5s", "How long after its start a registry first looks for nodes that have expired.", least="100ms", most="1h"
    )
    scan_every: Duration = key(
        "10s", "How often a registry looks for nodes that have expired.", least="100ms", most="1h"
    )
    expire_after: Duration = key(
        "2m",
        "How long after its last registration a node is removed. At least twice `register_every`, so that one lost request "
        "removes no node.",
        least="200ms", most="1d",
    )  # fmt: skip
    order_config: bool = key(
        False,
        "Attach the values of the namespace `ORDER_TOPIC_CONFIG` to the routes of the topics they are named after.",
    )
