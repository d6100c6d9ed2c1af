"""TLS of the clients: the files that variables name, and what to say when a connection fails because of it."""

import http.client
import os
import socket
import ssl
from urllib.parse import urlsplit

from chronos.client.errors import Refused

CA = "CHRONOS_CA"
"""Variable: PEM file with the authorities to trust; without it, those of the system."""

CERT = "CHRONOS_CERT"
"""Variable: PEM file with the certificate to show."""

CERT_KEY = "CHRONOS_CERT_KEY"
"""Variable: PEM file with its key; without it, the file of the certificate has both."""

PROBE_S = 1.0
"""How long an address may take to begin TLS."""

NAME_MISMATCH = (62, 64)
"""OpenSSL's codes for a certificate that is for another name, and for another address."""


def context_of_variables() -> ssl.SSLContext | None:
    """The context that the variables describe; None if none is set. Refused for a file that cannot be used."""
    ca, cert, key = (os.environ.get(name) or None for name in (CA, CERT, CERT_KEY))
    if ca is None and cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise Refused(f"{ca} cannot be used as certificates of authorities: {_reason(error)}") from None
    if cert is None:
        return context
    try:
        # Without the password's callback a protected key would ask for it on the terminal.
        context.load_cert_chain(cert, key, password="")
    except OSError as error:
        pair = cert if key is None else f"{cert} with {key}"
        raise Refused(f"{pair} cannot be used as a certificate and its key: {_reason(error)}") from None
    return context


def explain(server: str, error: BaseException) -> str | None:
    """What is wrong with TLS if the error is about that, and what to do."""
    found = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    if isinstance(found, ssl.SSLCertVerificationError):
        if found.verify_code in NAME_MISMATCH:
            return f"the certificate of {server} is for another name: {found.verify_message.rstrip('.')}. Use an address that it is for"
        return (
            f"the certificate of {server} is not trusted: {found.verify_message}. If its authority is one of your own, name it with --ca"
            f" or {CA}"
        )
    reason = str(getattr(found, "reason", None) or "")
    if not isinstance(found, ssl.SSLError):
        # With TLS 1.3 the client is done before the service has seen its certificate, or that there is none.
        if not (server.startswith("https:") and _is_closed(error)):
            return None
        return (
            f"{server} closed the connection without an answer: it may have stopped, or need a certificate of an authority that it"
            f" trusts; name one with --cert or {CERT}"
        )
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason:
        return f"{server} does not speak TLS: is the address right, or does it begin with http://?"
    if "ALERT" in reason:
        return (
            f"{server} refused the connection ({reason.lower().replace('_', ' ')}): it may need a certificate of an authority that it"
            f" trusts; name one with --cert or {CERT}"
        )
    return None


def speaks_tls(server: str, error: BaseException) -> bool:
    """Return whether an address without TLS that closed the connection speaks TLS; asks it, and blocks for PROBE_S at most."""
    parts = urlsplit(server)
    if parts.scheme != "http" or not _is_closed(error) or parts.hostname is None:
        return False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent: the answer itself is what is asked for.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((parts.hostname, parts.port or 80), timeout=PROBE_S) as plain,
            context.wrap_socket(plain, server_hostname=parts.hostname),
        ):
            return True
    except (OSError, ValueError):
        return False


def _is_closed(error: BaseException) -> bool:
    closed = ConnectionResetError | ConnectionAbortedError | BrokenPipeError | http.client.BadStatusLine
    return isinstance(error, closed)


def _reason(error: OSError) -> str:
    return str(error.strerror or getattr(error, "reason", None) or error)
