"""Values as people write them (such as durations, sizes, names, addresses, rates), checked and
converted; and `key` and `Section`, of which the configuration is made.

A refusal is a ValueError whose text is shown as it is: what is wrong with the value, and where
possible what to write instead."""

import ipaddress
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from chronos.core.rates import check_pattern, parse_rate
from chronos.core.shard.rules import TOPIC_NAME
from chronos.core.timefmt import UNIT_MS, BeyondAll, duration_advice, parse_duration_ms

_BYTES_BY_UNIT: Final = {
    "TiB": 1 << 40,
    "GiB": 1 << 30,
    "MiB": 1 << 20,
    "KiB": 1 << 10,
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "kB": 10**3,
}
# What people write for a unit; only used to guess what to suggest, never to accept it.
_UNIT_BY_WORD: Final = {
    "day": "d",
    "days": "d",
    "hour": "h",
    "hours": "h",
    "hr": "h",
    "hrs": "h",
    "minute": "m",
    "minutes": "m",
    "min": "m",
    "mins": "m",
    "second": "s",
    "seconds": "s",
    "sec": "s",
    "secs": "s",
    "millisecond": "ms",
    "milliseconds": "ms",
    "millis": "ms",
    "msec": "ms",
}
# Fifteen digits are enough for any value, and bound the arithmetic.
_AMOUNT: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)", re.ASCII)


def duration_ms(value: object) -> int:
    """`90s` as 90000. An int from code is milliseconds; a bare number in text is an error, except
    0."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if value == "0":
        return 0
    amount, unit = _amount(value)
    text = value if isinstance(value, str) else ""
    if not text.isdigit():
        try:
            return parse_duration_ms(text)
        except BeyondAll:
            raise
        except ValueError:
            pass
    hint = duration_advice(text)
    guess = unit if unit in UNIT_MS else _UNIT_BY_WORD.get(unit.lower(), "")
    if guess:
        hint = f"did you mean {amount}{guess}?"
    elif amount and not unit:
        hint = f"it has no unit; did you mean {amount}s, or {amount}ms?"
    raise ValueError(f"{quoted(value)} is not a duration; {hint}")


def size_bytes(value: object) -> int:
    """`64MiB` as 67108864, `8MB` as 8000000; a whole number is bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    amount, unit = _amount(value)
    units = {name.lower(): factor for name, factor in _BYTES_BY_UNIT.items()} | {"": 1, "b": 1}
    if isinstance(value, str) and value == amount + unit and amount and unit.lower() in units:
        size = Decimal(amount) * units[unit.lower()]
        if size == int(size):
            return int(size)
        raise ValueError(f"{quoted(value)} is not a whole number of bytes")
    hint = "write bytes, or one number and a unit: 65536, 64KiB, 8MB or 1GiB"
    if amount and unit.lower() in units:
        hint = f"did you mean {amount}{unit}?"
    elif amount and unit.upper() in ("K", "M", "G", "T"):
        letter = unit.upper()
        hint = f"did you mean {amount}{letter}iB, or {amount}{'k' if letter == 'K' else letter}B?"
    raise ValueError(f"{quoted(value)} is not a size; {hint}")


def _amount(value: object) -> tuple[str, str]:
    found = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    return (found[1], found[2]) if found else ("", "")


def size_text(size: int) -> str | int:
    """The shortest exact way to write a size: `64MiB`, `8MB`, or plain bytes."""
    for unit, factor in _BYTES_BY_UNIT.items():
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return size


_ADDRESS: Final = re.compile(
    r"(?:\w+://)?(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\],]+)(?::(\d{1,5}))?", re.ASCII
)


def _not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    if not text.isprintable():
        # The text may be a password: only the character is named.
        at = next(index for index, character in enumerate(text) if not character.isprintable())
        raise ValueError(
            f"holds a character that cannot be printed: U+{ord(text[at]):04X}, at position {at + 1}"
        )
    return text


def _name(text: str) -> str:
    # It becomes part of the transactional ids of a backfill, of a path in the coordinator and of
    # progress records.
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", text) or text in (".", ".."):
        raise ValueError(
            f"{quoted(text)} is no name; use up to 200 letters, digits, '.', '_' and '-'"
        )
    return text


def _topic(text: str) -> str:
    if not TOPIC_NAME.fullmatch(text) or text in (".", ".."):
        raise ValueError(
            f"{quoted(text)} is no name for a topic; Kafka takes up to 249 letters, digits, '.', "
            "'_' and '-'"
        )
    if text.startswith("__"):
        raise ValueError(f"{quoted(text)} starts with '__', which Kafka keeps for itself")
    return text


def _addresses(text: str) -> str:
    for address in text.split(","):
        found = _ADDRESS.fullmatch(address.strip())
        if not found or not 0 < int(found[1] or 1) < 65_536:
            raise ValueError(
                f"{quoted(address.strip())} is no address; write host:port, several with commas"
            )
    return text


def _ensemble(text: str) -> str:
    servers, slash, path = text.partition("/")
    if slash and servers and not servers.endswith(":"):
        raise ValueError(
            f"{quoted(text)} has a path; write {quoted(servers)} here, and {quoted('/' + path)} in "
            "coordinator.zookeeper.path"
        )
    return _addresses(text)


def _address(url: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#]+/?", url, re.ASCII):
        shown = quoted(re.sub(r"//[^/]*@", "//", url))  # Without a password.
        raise ValueError(f"{shown} is no address; write http://host:port")
    return url.rstrip("/")


def _replicas(count: int) -> int:
    if count == 0:
        raise ValueError("0 replicas hold nothing; use -1 for the broker's default, or 1 or more")
    return count


def _patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    if any(not pattern.strip() for pattern in patterns):
        raise ValueError("holds an empty pattern")
    return patterns


def _hosts(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}", name):
            raise ValueError(
                f"{quoted(name)} is no host name; write it without http:// and without a port"
            )
    return names


def _voters(texts: tuple[str, ...]) -> tuple[str, ...]:
    found = [_voter(text) for text in texts]
    for what, values in (
        ("node", [name for name, _ in found]),
        ("address", [address for _, address in found]),
    ):
        if twice := {value for value in values if values.count(value) > 1}:
            raise ValueError(
                f"names {'an' if what == 'address' else 'a'} {what} twice: "
                f"{', '.join(sorted(twice))}"
            )
    return texts


def _voter(text: str) -> tuple[str, str]:
    name, _, address = text.partition("=")
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name) or not host or not port:
        raise ValueError(
            f"{quoted(text)} is no voter; write the id of its node and its address, as "
            "node=host:port"
        )
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65_536:
        raise ValueError(f"{quoted(text)}: {quoted(port)} is no port; use 1 to 65535")
    if not _is_host(host):
        raise ValueError(
            f"{quoted(text)}: {quoted(host)} is no host; write a name or an IP address, that of "
            "IPv6 in brackets"
        )
    return name, address.lower()


def _is_host(text: str) -> bool:
    """Return whether it is the name of a host, an IPv4 address, or an IPv6 address in brackets."""
    try:
        if text.startswith("[") and text.endswith("]"):
            ipaddress.IPv6Address(text[1:-1])
        elif re.fullmatch(r"[0-9.]+", text):
            ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return text.startswith("[") or re.fullmatch(r"[A-Za-z0-9._-]{1,253}", text) is not None


def _rate(text: str) -> str:
    parse_rate(text)
    return text.strip()


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def quoted(value: object) -> str:
    """A value as it was written, on one line of at most 80 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f'{text[:60]}..." ({len(text)} characters)'


Duration = Annotated[int, BeforeValidator(duration_ms)]
Size = Annotated[int, BeforeValidator(size_bytes)]
Text = Annotated[str, AfterValidator(_not_empty)]
Name = Annotated[str, AfterValidator(_name)]
Topic = Annotated[str, AfterValidator(_topic)]
Address = Annotated[str, AfterValidator(_address)]
Addresses = Annotated[str, AfterValidator(_addresses)]
Ensemble = Annotated[str, AfterValidator(_ensemble)]
Replicas = Annotated[int, AfterValidator(_replicas)]
Rates = Mapping[
    Annotated[str, AfterValidator(check_pattern)], Annotated[str, AfterValidator(_rate)]
]
Hosts = Annotated[tuple[str, ...], AfterValidator(_hosts)]
Voters = Annotated[tuple[str, ...], AfterValidator(_voters)]
Patterns = Annotated[tuple[str, ...], AfterValidator(_patterns)]


def key(default: object, meaning: str, *, least: object = None, most: object = None) -> Any:
    """A key: its default and bounds as they are written in a file, its meaning with unit and
    reason."""
    return Field(
        default, description=meaning, validate_default=True, ge=_number(least), le=_number(most)
    )


def _number(bound: object) -> int | None:
    if bound is None or isinstance(bound, int):
        return bound
    return duration_ms(bound) if str(bound).endswith(tuple(UNIT_MS)) else size_bytes(bound)


class Section(BaseModel):
    """A section: frozen, without unknown keys; an error does not show the value, which may be a
    password."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
