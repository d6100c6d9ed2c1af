"""The address of a service, TLS and the token: how they are read from arguments and environment
variables, and the errors of a service that does not answer or is not trusted.

No HTTP request is sent here; `speaks_tls` connects once to find out why a request failed."""

import http.client
import os
import socket
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

from chronos.client.models import Refused, Unreachable
from chronos.core import certificates

SERVER = "http://127.0.0.1:7700"
"""Where a service listens by default."""

TIMEOUT_S = 30.0
"""Longest a call may take, all its retries together."""

RETRIES = 4
"""Most repetitions of a call, however much time is left."""

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


def addresses(server: str | Sequence[str] | None) -> tuple[tuple[str, ...], bool]:
    """The given addresses, else those of `$CHRONOS_SERVER`, else the default, and whether they are
    a list of registries.

    Text with commas is a list. Refused if one is not an HTTP address.
    """
    given = server or os.environ.get("CHRONOS_SERVER") or SERVER
    is_list = not isinstance(given, str) or "," in given
    words = given.split(",") if isinstance(given, str) else given
    return tuple(dict.fromkeys(address(word.strip()) for word in words)), is_list


def address(found: str) -> str:
    """The address as a URL; Refused if it is not an HTTP address."""
    if "://" not in found:
        found = f"http://{found}"
    try:
        parts = urlsplit(found)
        valid = (
            parts.scheme in ("http", "https")
            and parts.hostname is not None
            and (parts.port or 1) > 0
        )
    except ValueError:
        valid = False
    if not valid:
        raise Refused(f"{found!r} is not the address of a service; write http://host:port")
    return found


def is_address(found: str) -> bool:
    """Return whether `address` takes it as it is."""
    try:
        return address(found) == found
    except Refused:
        return False


def authorization(token: str | None) -> dict[str, str]:
    """The header for the given token, else for `$CHRONOS_TOKEN`; none without a token. Refused if
    it cannot be sent."""
    found = token if token is not None else os.environ.get("CHRONOS_TOKEN", "")
    found = found.strip()
    if not found:
        return {}
    if not (found.isascii() and found.isprintable() and " " not in found):
        raise Refused("the token contains a character that a token cannot have")
    return {"Authorization": f"Bearer {found}"}


def unreachable(server: str, error: Exception) -> Unreachable:
    """The error for a socket that failed."""
    if (why := explain(server, error)) is not None:
        return Unreachable(why)
    if isinstance(error, TimeoutError):
        return Unreachable(f"{server} did not answer in time")
    return Unreachable(
        f"no answer from {server}: {certificates.reason(error)}. Is the service running (chronos "
        "serve), and the address right?"
    )


def context_of_variables() -> ssl.SSLContext | None:
    """The context that the variables describe; None if none is set. Refused for a file that cannot
    be used."""
    ca, cert, key = (os.environ.get(name) or None for name in (CA, CERT, CERT_KEY))
    if ca is None and cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise Refused(
            f"{ca} cannot be used as certificates of authorities: {_reason(error)}"
        ) from None
    if cert is None:
        return context
    try:
        # Without the password's callback a protected key would ask for it on the terminal.
        context.load_cert_chain(cert, key, password="")
    except OSError as error:
        pair = cert if key is None else f"{cert} with {key}"
        raise Refused(
            f"{pair} cannot be used as a certificate and its key: {_reason(error)}"
        ) from None
    return context


def explain(server: str, error: BaseException) -> str | None:
    """What is wrong with TLS if the error is about that, and what to do."""
    found = certificates.cause(error)
    if isinstance(found, ssl.SSLCertVerificationError):
        if found.verify_code in NAME_MISMATCH:
            return (
                f"the certificate of {server} is for another name: "
                f"{found.verify_message.rstrip('.')}. Use an address that it is for"
            )
        if found.verify_code in certificates.STRICT:
            return (
                f"the certificate of {server}, or its authority, is refused: "
                f"{found.verify_message}. {certificates.REMEDY}"
            )
        return (
            f"the certificate of {server} is not trusted: {found.verify_message}. If its "
            f"authority is one of your own, name it with --ca or {CA}"
        )
    reason = str(getattr(found, "reason", None) or "")
    if not isinstance(found, ssl.SSLError):
        # With TLS 1.3 the client is done before the service has seen its certificate, or that there
        # is none.
        if not (server.startswith("https:") and _is_closed(error)):
            return None
        return (
            f"{server} closed the connection without an answer: it may have stopped, or need a "
            f"certificate of an authority that it trusts; name one with --cert or {CERT}"
        )
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason:
        return f"{server} does not speak TLS: is the address right, or does it begin with http://?"
    if "ALERT" in reason:
        return (
            f"{server} refused the connection ({reason.lower().replace('_', ' ')}): it may need a "
            f"certificate of an authority that it trusts; name one with --cert or {CERT}"
        )
    return None


def speaks_tls(server: str, error: BaseException) -> bool:
    """Return whether an address without TLS that closed the connection speaks TLS; asks it, and
    blocks for PROBE_S at most."""
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
    closed = (
        ConnectionResetError | ConnectionAbortedError | BrokenPipeError | http.client.BadStatusLine
    )
    return isinstance(error, closed)


def _reason(error: OSError) -> str:
    return str(error.strerror or getattr(error, "reason", None) or error)
