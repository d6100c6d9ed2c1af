"""Bytes as JSON writes them: text where it is UTF-8, base64 where it is not, and ids in a form of their own."""

import binascii
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from msgspec import UNSET, UnsetType

from chronos.admin.schemas import Binary, HeaderValue, HeaderValues

BASE64_ID = "base64:"
"""Prefix of an id that is written in base64; one that begins so itself is written so too."""


def id_text(message_id: bytes) -> str:
    """An id as the API writes it; `id_bytes` reads it back."""
    text = decoded(message_id)
    if text is None or text.startswith(BASE64_ID):
        return BASE64_ID + encoded(message_id)
    return text


def id_path(message_id: bytes) -> str:
    """The path of a message: percent-encoded, and never one that means another path."""
    text = id_text(message_id)
    if not text.strip("."):
        text = BASE64_ID + encoded(message_id)
    return f"/v1/messages/{quote(text, safe='')}"


def id_bytes(text: str) -> bytes:
    """The bytes of an id; ValueError, with a text for users, when it cannot be one."""
    if text.startswith(BASE64_ID):
        return from_base64(text.removeprefix(BASE64_ID))
    return to_bytes(text)


def to_bytes(text: str) -> bytes:
    """UTF-8; ValueError for half a surrogate pair, which JSON can write and UTF-8 cannot."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds a character that is half of a pair") from None


def from_base64(text: str) -> bytes:
    """The bytes; ValueError, with a text for users, when it is not base64."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise ValueError("is not base64") from None


def encoded(data: bytes) -> str:
    """Base64."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def decoded(data: bytes) -> str | None:
    """The text, if it is UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def text_or_base64(data: bytes | None) -> tuple[str | None, str | UnsetType]:
    """The two fields in which bytes go out: `(text, base64)`, one of them unset or null."""
    if data is None:
        return None, UNSET
    text = decoded(data)
    return (text, UNSET) if text is not None else (None, encoded(data))


def headers_out(headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]) -> HeaderValues:
    """Headers by name, in the order in which names come first."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    out: HeaderValues = {}
    for name, data in pairs:
        value = _header_out(data)
        if name not in out:
            out[name] = value
            continue
        before = out[name]
        out[name] = [*before, value] if isinstance(before, list) else [before, value]
    return out


def _header_out(data: bytes | None) -> HeaderValue:
    if data is None:
        return None
    text = decoded(data)
    return text if text is not None else Binary(base64=encoded(data))


def headers_in(headers: HeaderValues) -> list[tuple[str, bytes | None]]:
    """The headers in order; ValueError, with a text for users, for what cannot be written."""
    pairs: list[tuple[str, bytes | None]] = []
    for name, value in headers.items():
        to_bytes(name)
        for one in value if isinstance(value, list) else (value,):
            if one is None:
                pairs.append((name, None))
            else:
                pairs.append((name, to_bytes(one) if isinstance(one, str) else from_base64(one.base64)))
    return pairs
