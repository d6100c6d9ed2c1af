"""The ensemble of ZooKeeper servers, and how a client of kazoo connects to it."""

import logging
import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Literal

from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE
from msgspec import Struct

from chronos.errors import ConfigurationError

# kazoo warns about every attempt at every server; `_on_state` logs each change once.
KAZOO_LOG = logging.getLogger("chronos.zookeeper.kazoo")
KAZOO_LOG.setLevel(logging.ERROR)

RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 0.5}
"""Pauses between attempts to connect, in seconds. kazoo's longest is an hour; a session of 4 s must
outlive several."""


class ZooKeeperServers(Struct, frozen=True, kw_only=True):
    """The ensemble, and how to connect to it."""

    hosts: str
    session_timeout_s: float = 10.0
    path: str = "/chronos"
    authentication: Literal["none", "digest", "sasl"] = "none"
    username: str | None = None
    password: str | None = None
    acl: Literal["open", "creator"] = "open"
    """`creator`: only clients that authenticate alike have access."""
    tls: bool = False
    ca: str | None = None
    certfile: str | None = None
    keyfile: str | None = None

    def client_settings(self) -> dict[str, Any]:
        """Return the settings of kazoo's client. Raises ConfigurationError for a file or a package
        that is missing."""
        files = {"ca": self.ca, "certfile": self.certfile, "keyfile": self.keyfile}
        _check(self.authentication, files)
        settings: dict[str, Any] = {
            "hosts": self.hosts,
            "timeout": self.session_timeout_s,
            "connection_retry": RECONNECT,
            "logger": KAZOO_LOG,
            "default_acl": CREATOR_ALL_ACL if self.acl == "creator" else OPEN_ACL_UNSAFE,
        }
        if self.authentication == "digest":
            settings["auth_data"] = [("digest", f"{self.username}:{self.password}")]
        elif self.authentication == "sasl":
            sasl = {
                "mechanism": "DIGEST-MD5",
                "username": self.username,
                "password": self.password,
            }
            settings["sasl_options"] = sasl
        if self.tls:
            settings |= {"use_ssl": True, "check_hostname": True, **files}
        return settings


def _check(authentication: str, files: Mapping[str, str | None]) -> None:
    """Raise ConfigurationError for what kazoo would find out only in a thread of its own, where the
    error is lost."""
    problems = [
        f"coordinator.zookeeper.{key}: {file} cannot be read"
        for key, file in files.items()
        if file is not None and not os.access(file, os.R_OK)
    ]
    if authentication == "sasl" and find_spec("puresasl") is None:
        problems.append(
            "coordinator.zookeeper.authentication: sasl needs the package pure-sasl, which is not "
            "installed"
        )
    if problems:
        raise ConfigurationError(problems)
