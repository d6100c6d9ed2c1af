"""TLS of the HTTP interface: for its own connections, and for those to other nodes."""

import ssl

from chronos.config import Config
from chronos.errors import ConfigurationError


def server_tls(config: Config) -> ssl.SSLContext | None:
    """The context of the HTTP interface; None without a certificate. Raises ConfigurationError for a file that cannot be used."""
    tls = config.admin.tls
    if tls.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, config)
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _load_authority(context, tls.client_ca)
    return context


def client_tls(config: Config) -> ssl.SSLContext:
    """The context for requests to other nodes, which shows them the certificate of this node.

    It trusts the authorities of the system (`SSL_CERT_FILE` names others) and that of client certificates. Raises
    ConfigurationError for a file that cannot be used.
    """
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
                f"admin.tls: {tls.certificate} with {tls.key} cannot be used as a certificate and its key: {_reason(error)}"
            ]
        ) from None


def _load_authority(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise ConfigurationError([f"admin.tls.client_ca: {path} cannot be used: {_reason(error)}"]) from None


def _reason(error: OSError) -> str:
    return str(error.strerror or getattr(error, "reason", None) or error)
