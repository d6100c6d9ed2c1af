"""The address of a service, and what to say when it does not answer."""

import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from chronos.client.errors import Refused, Unreachable
from chronos.client.tls import explain

SERVER = "http://127.0.0.1:7700"
"""Where a service listens by default."""

TIMEOUT_S = 30.0
"""Longest a call may take, all its retries together."""

RETRIES = 4
"""Most repetitions of a call, however much time is left."""


def addresses(server: str | Sequence[str] | None) -> tuple[tuple[str, ...], bool]:
    """The given addresses, else those of `$CHRONOS_SERVER`, else the default, and whether they are a list of registries.

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
        valid = parts.scheme in ("http", "https") and parts.hostname is not None and (parts.port or 1) > 0
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
    """The header for the given token, else for `$CHRONOS_TOKEN`; none without a token. Refused if it cannot be sent."""
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
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Unreachable(
        f"no answer from {server}: {reason}. Is the service running (chronos serve), and the address right?"
    )
