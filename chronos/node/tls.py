"""The TLS contexts of the HTTP interface and of the voters: one for connections to this node, and
one for connections from it to other nodes.

The files are read again when they change. Files that cannot be used then leave the contexts as they
are: a certificate and its key are two files, and one of them is always replaced first. What
certificates contain is read in `certificates`."""

import os
import ssl
import threading
import time

import structlog

from chronos.config import Config
from chronos.errors import ConfigurationError
from chronos.node import certificates

log = structlog.get_logger("chronos.tls")

CHECK_S = 1.0
"""Least time between two looks at the files."""


class Tls:
    """The contexts of one node, made again when their files have changed. For all threads."""

    def __init__(self, config: Config) -> None:
        """Raises ConfigurationError for a file that cannot be used."""
        self._config = config
        tls = config.admin.tls
        # SSL_CERT_FILE names the authorities that the connections to other nodes trust.
        self._paths = tuple(
            filter(None, (tls.certificate, tls.key, tls.client_ca, os.environ.get("SSL_CERT_FILE")))
        )
        self._lock = threading.Lock()
        self._checked_s = time.monotonic()
        self._state = self._files()
        self._server, self._client = server_tls(config), client_tls(config)
        self._stale = False
        self.refused = self._examine()
        """What clients and nodes on Python 3.13 and later refuse in the files, for people."""

    def server(self) -> ssl.SSLContext | None:
        """The context for a new connection to this node; None without a certificate."""
        self._refresh()
        return self._server

    def client(self) -> ssl.SSLContext:
        """The context for a new connection to another node."""
        self._refresh()
        return self._client

    @property
    def is_stale(self) -> bool:
        """True while the files cannot be used as they are now: those of before stay in force."""
        self._refresh()
        return self._stale

    def _refresh(self) -> None:
        now_s = time.monotonic()
        if not self._paths or now_s < self._checked_s + CHECK_S:
            return
        with self._lock:
            if now_s < self._checked_s + CHECK_S:
                return
            self._checked_s = now_s
            # The state before the read: a change during it is found by the next look.
            state = self._files()
            if state == self._state:
                return
            self._state = state
            try:
                self._server, self._client = server_tls(self._config), client_tls(self._config)
            except (ConfigurationError, OSError) as error:
                self._stale = True
                log.error(
                    "certificates not read",
                    why=str(error),
                    consequence="those of before stay in force",
                )
            else:
                self._stale = False
                log.info("certificates read", files=", ".join(self._paths))
                self.refused = self._examine()

    def _examine(self) -> list[str]:
        # They are in force all the same: other clients take them, and older Pythons do.
        trusted = self._client.get_ca_certs(binary_form=True)
        found = certificates.refused(self._config.admin.tls, trusted)
        for why in found:
            log.warning("certificate refused by newer clients", why=why)
        return found

    def _files(self) -> tuple[object, ...]:
        return tuple(map(_state, self._paths))


def _state(path: str) -> object:
    try:
        found = os.stat(path)
    except OSError as error:
        return str(error)
    return found.st_mtime_ns, found.st_size, found.st_ino


def server_tls(config: Config) -> ssl.SSLContext | None:
    """The context of the HTTP interface; None without a certificate. Raises ConfigurationError for
    a file that cannot be used."""
    tls = config.admin.tls
    if tls.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, config)
    if tls.client_ca is not None:
        context.verify_mode = (
            ssl.CERT_REQUIRED if tls.client_certificates == "required" else ssl.CERT_OPTIONAL
        )
        _load_authority(context, tls.client_ca)
    return context


def client_tls(config: Config) -> ssl.SSLContext:
    """The context for requests to other nodes, which shows them the certificate of this node.

    It trusts the authorities of the system (`SSL_CERT_FILE` names others) and that of client
    certificates. Raises ConfigurationError for a file that cannot be used."""
    tls = config.admin.tls
    context = ssl.create_default_context()
    if tls.certificate is not None:
        _load_certificate(context, config)
    if tls.client_ca is not None:
        _load_authority(context, tls.client_ca)
    return context


def _load_certificate(context: ssl.SSLContext, config: Config) -> None:
    tls = config.admin.tls
    assert tls.certificate is not None
    try:
        # Without the password's callback a protected key would ask for it on the terminal.
        context.load_cert_chain(tls.certificate, tls.key, password="")
    except OSError as error:
        raise ConfigurationError(
            [
                f"admin.tls: {tls.certificate} with {tls.key} cannot be used as a certificate and "
                f"its key: {_reason(error)}"
            ]
        ) from None


def _load_authority(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise ConfigurationError(
            [f"admin.tls.client_ca: {path} cannot be used: {_reason(error)}"]
        ) from None


def _reason(error: OSError) -> str:
    return str(error.strerror or getattr(error, "reason", None) or error)
