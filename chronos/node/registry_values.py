"""The key-value configuration that the registry serves, by namespace.

In a cluster the controller publishes it with the roles, so every node has it within a second, after
a restart of all nodes too, and keeps the last one while the coordinator does not answer. A
standalone node keeps it in its data directory."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog
from msgspec import Struct

from chronos.adapters.disk import keep
from chronos.core.cluster.registry.configuration import Configuration, configured
from chronos.core.cluster.roles import Request
from chronos.errors import Stop

if TYPE_CHECKING:
    from chronos.workers.cluster.membership import Membership


log = structlog.get_logger("chronos.node")

VALUES_FILE = "registry-values.json"
"""The file of a standalone node's configuration, in its data directory."""


class _KeptValues(Struct, kw_only=True):
    """The content of the file."""

    version: int = 1
    namespaces: dict[str, dict[str, str]] = {}


class RegistryConfiguration:
    """The configuration as this node knows it. Any thread may use it."""

    def __init__(self, directory: Path) -> None:
        """`directory`: the data directory; its file is read by `open`."""
        self._file = directory / VALUES_FILE
        self._membership: Membership | None = None
        self._lock = threading.Lock()
        self._known: Configuration = {}
        self._published: Configuration = {}
        """That of the last roles, which may be another object with the same content."""

    def open(self, membership: "Membership | None") -> None:
        """Begin. Raises Stop if the file of a standalone node cannot be read."""
        self._membership = membership
        if membership is None and self._file.exists():
            try:
                self._known = msgspec.json.decode(
                    self._file.read_bytes(), type=_KeptValues
                ).namespaces
            except (OSError, msgspec.MsgspecError) as error:
                raise Stop(
                    f"{self._file} holds no configuration of the registry that this version can "
                    f"read ({error}). Remove it to continue without"
                ) from error

    def known(self) -> Configuration:
        """Return the configuration, the same object until it changes."""
        roles = None if self._membership is None else self._membership.snapshot().roles
        if roles is not None and roles.configured is not self._published:
            self._published = roles.configured
            if self._published != self._known:
                self._known = self._published
        return self._known

    def change(self, namespace: str, key: str, value: str | None, *, at_ms: int) -> None:
        """Set a value, or delete it. Raises Full, CoordinatorUnavailable; NoSpace if it cannot be
        kept."""
        with self._lock:
            if self.known().get(namespace, {}).get(key) == value:
                return
            changed = configured(self.known(), namespace, key, value)
            log.info("registry configured", namespace=namespace, key=key, deleted=value is None)
            if self._membership is not None:
                request = Request(
                    kind="configure",
                    node="",
                    namespace=namespace,
                    key=key,
                    value=value,
                    at_ms=at_ms,
                )
                self._membership.ask(request)
                return
            # The file has either the old or the new values after a crash.
            namespaces = {name: dict(values) for name, values in changed.items()}
            keep(self._file, msgspec.json.encode(_KeptValues(namespaces=namespaces)))
            self._known = changed
