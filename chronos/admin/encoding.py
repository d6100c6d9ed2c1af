"""Bytes in JSON: text where they are UTF-8, base64 where they are not, and ids in a form of their own."""

import binascii
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from msgspec import UNSET, UnsetType

from chronos.admin.schemas import Binary, HeaderValue, HeaderValues
from chronos.core.keys import ID_BYTES_MAX

BASE64_ID = "base64:"
"""Prefix of an id in base64. An id whose own bytes begin with the prefix is written in base64 too."""


def id_text(message_id: bytes) -> str:
    """An id as the API writes it; `id_bytes` reads it back."""
    text = decoded(message_id)
    if text is None or text.startswith(BASE64_ID):
        return BASE64_ID + encoded(message_id)
    return text


def id_path(message_id: bytes) -> str:
    """The path of a message: percent-encoded; an id of dots only, which would change the path, is written in base64."""
    text = id_text(message_id)
    if not text.strip("."):
        text = BASE64_ID + encoded(message_id)
    return f"/v1/messages/{quote(text, safe='')}"


def id_bytes(text: str) -> bytes:
    """The bytes of an id; ValueError, with a text for users, when the text is not an id."""
    if text.startswith(BASE64_ID):
        return from_base64(text.removeprefix(BASE64_ID))
    return to_bytes(text)


def whole_id_bytes(text: str) -> bytes:
    """The bytes of an id of a message; ValueError, with a text for users, also for its length."""
    message_id = id_bytes(text)
    if not 0 < len(message_id) <= ID_BYTES_MAX:
        raise ValueError(f"must have 1 to {ID_BYTES_MAX} bytes, not {len(message_id)}")
    return message_id


def to_bytes(text: str) -> bytes:
    """The text in UTF-8; ValueError for half a surrogate pair, which JSON can express and UTF-8 cannot."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains half of a surrogate pair") from None


def from_base64(text: str) -> bytes:
    """The bytes; ValueError, with a text for users, when the text is not base64."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise ValueError("is not base64") from None


def encoded(data: bytes) -> str:
    """The bytes in base64."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def decoded(data: bytes) -> str | None:
    """The text; None: the bytes are not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def text_or_base64(data: bytes | None) -> tuple[str | None, str | UnsetType]:
    """Bytes as the two fields of an answer, `(text, base64)`: text alone where it is UTF-8; null bytes are `(None, UNSET)`."""
    if data is None:
        return None, UNSET
    text = decoded(data)
    return (text, UNSET) if text is not None else (None, encoded(data))


def headers_out(headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]) -> HeaderValues:
    """Headers by name, in the order of first occurrence."""
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
    """The headers as pairs in order; ValueError, with a text for users, for a value that is not valid."""
    pairs: list[tuple[str, bytes | None]] = []
    for name, value in headers.items():
        to_bytes(name)
        if "\0" in name:
            # The Kafka client would end the name there.
            raise ValueError(f"the header name {name[:80]!r} contains NUL")
        for one in value if isinstance(value, list) else (value,):
            if one is None:
                pairs.append((name, None))
            else:
                pairs.append((name, to_bytes(one) if isinstance(one, str) else from_base64(one.base64)))
    return pairs
