"""Time zones: the names, the rules and the version of the IANA database, always those of the
package `tzdata`.

The zone data of the machine are not looked at, whatever `PYTHONTZPATH` and `zoneinfo.TZPATH` name:
they may be of another age than the package, and other zones are in them, such as the machine's own
(`localtime`). A program that imports the client keeps its own zone data; in it, only the
client's checks use these.

Of the replicas of a shard, only the master computes with zone data and refuses names by them; the
others execute what it recorded (law 9)."""

from difflib import get_close_matches
from functools import cache, lru_cache
from heapq import nlargest
from importlib.resources import files
from itertools import pairwise
from zoneinfo import ZoneInfo

import tzdata

VERSION: str = tzdata.IANA_VERSION
"""Version of the zone data, such as `2026f`. Versions sort by age: after `2026z` comes `2026za`."""

NAMES = frozenset((files(tzdata) / "zones").read_text().split()) - {"Factory"}
"""Every name of a time zone. `Factory` is that of a machine whose zone nobody has set."""

WRONG_NAMES_MAX = 1_000
"""Names that are none and whose texts are remembered: finding the nearest takes 1 ms."""

NEAR_MAX = 8
"""Names that are compared with a wrong one letter by letter."""

_FOLDED = {name.casefold(): name for name in sorted(NAMES)}


def _pairs(text: str) -> frozenset[str]:
    return frozenset(map("".join, pairwise(text)))


@cache
def _pairs_of_names() -> dict[str, frozenset[str]]:
    return {folded: _pairs(folded) for folded in _FOLDED}


def zone_of(name: str) -> ZoneInfo:
    """Return the time zone; UTC if the name is empty. Raises ValueError, with a text for users, if
    the database has no zone of exactly this name."""
    name = name or "UTC"
    if name not in NAMES:
        raise ValueError(_unknown(name))
    return _read(name)


@cache
def _read(name: str) -> ZoneInfo:
    assert name in NAMES, "a file that is no zone"
    with (files(tzdata) / "zoneinfo").joinpath(*name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


@lru_cache(maxsize=WRONG_NAMES_MAX)
def _unknown(name: str) -> str:
    shown = f"{name[:80]!r} is not a time zone"
    nearest = _nearest(name[:80].casefold())
    if nearest is None:
        return f"{shown}; write a name of the IANA database, such as Europe/Lisbon"
    return f"{shown} of the IANA database; did you mean {nearest}?"


def _nearest(folded: str) -> str | None:
    """Return the name that is written so apart from its case, else the most similar one; None if
    none is similar."""
    if folded in _FOLDED:
        return _FOLDED[folded]
    pairs, of_names = _pairs(folded), _pairs_of_names()
    near = nlargest(
        NEAR_MAX,
        _FOLDED,
        key=lambda each: len(pairs & of_names[each]) / (len(pairs) + len(of_names[each])),
    )
    found = get_close_matches(folded, near, n=1)
    return _FOLDED[found[0]] if found else None
