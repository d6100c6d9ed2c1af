"""The configuration that registries serve to clients: namespace -> key -> value, within bounds.

It is the only thing about a registry that outlasts the processes of the nodes: the coordinator
keeps it with the roles, a standalone node in a file (`node.registry_values`)."""

from collections.abc import Mapping

from chronos.core.cluster.registry.values import Full

ENTRIES_MAX = 1_000
"""Most configuration entries of a registry."""

CONFIGURATION_BYTES_MAX = 65_536
"""Most bytes of all entries, names included: the coordinator keeps them with the roles, and may
store no more than 1 MB."""

Configuration = Mapping[str, Mapping[str, str]]
"""Values for clients: namespace -> key -> value."""


def configured(known: Configuration, namespace: str, key: str, value: str | None) -> Configuration:
    """Return the configuration with the value set; None: without it. Raises Full."""
    values = {name: content for name, content in known.get(namespace, {}).items() if name != key}
    if value is not None:
        values[key] = value
    changed = {name: content for name, content in {**known, namespace: values}.items() if content}
    if value is None:
        return changed
    entries = [
        (name, each, content) for name, pairs in changed.items() for each, content in pairs.items()
    ]
    if len(entries) > ENTRIES_MAX:
        raise Full(f"the registry has {ENTRIES_MAX} configuration entries, which is the most")
    if (
        size := sum(len(text.encode()) for entry in entries for text in entry)
    ) > CONFIGURATION_BYTES_MAX:
        raise Full(
            f"the configuration of the registry would have {size} bytes, and may have "
            f"{CONFIGURATION_BYTES_MAX}"
        )
    return changed
