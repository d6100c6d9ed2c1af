"""The texts about wrong settings: what is wrong, and what to write instead.

Texts only: `reading` adds the place of each problem, and sorts the problems. Here are those about
bounds, choices, switches, whole numbers, missing values, unknown keys, and text that is not YAML.
Those about constraints are in `constraints`, those about the form of other values in `values`, and
all others about the structure of a file, a variable or a flag in `reading`."""

import json
import re
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Final

from pydantic_core import ErrorDetails

from chronos.config.catalogue import Key, children, keys
from chronos.config.values import quoted

ENVIRONMENT_PREFIX: Final = "CHRONOS_"

# What Kubernetes puts into every pod for each service it knows: a service named chronos looks like
# us.
_SERVICE_LINK: Final = re.compile(r"(^|_)service_(host|port)|(^|_)port_\d+_(tcp|udp)")


def wrong_value(found: Key, details: ErrorDetails) -> str:
    """Return the text about a wrong value, for an error of pydantic."""
    value, verdict = details["input"], details["type"]
    if value is None:
        return no_value(found)
    if verdict == "value_error":
        return str(details["ctx"]["error"])
    if verdict in ("greater_than_equal", "less_than_equal"):
        least, most = found.bounds
        shown = int(Decimal(value)) if found.kind == "number" else found.written(value)
        return f"{shown} is not within {least} to {most}"
    if found.kind == "choice":
        near = get_close_matches(str(value).lower(), found.choices, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{quoted(value)} is not one of {', '.join(found.choices)}{hint}"
    if found.kind == "switch":
        return f"{quoted(value)} is neither on nor off"
    if found.kind == "number":
        return f"{quoted(value)} is not a whole number, for example {plain(found.default or 1)}"
    return f"{quoted(value)} is refused: {details['msg']}"


def no_value(found: Key) -> str:
    """Return the text about a key without a value."""
    return f"has no value; leave the key out for its default, {plain(found.default)}"


def unknown_key(path: str, *, dotted: bool = False) -> str:
    """Return the text about a path that is no key, with the keys that may have been meant;
    `dotted`: a file held it as one name."""
    if dotted and path in keys():
        return "unknown key; in a file, write one level per line"
    near = _similar(path)
    if near:
        return f"unknown key; did you mean {' or '.join(near)}?"
    parent = path.rpartition(".")[0]
    while parent and parent not in keys():
        parent = parent.rpartition(".")[0]
    return f"unknown key; {contents(parent)}"


def unknown_variable(path: str, value: str) -> str:
    """Return the text about a variable with the prefix of Chronos that is no key, with the
    variables that may have been meant."""
    if _SERVICE_LINK.search(path) or "://" in value:
        return (
            "unknown key; Kubernetes sets such variables for a service of that name: set "
            "enableServiceLinks: false in the pod, or rename the service"
        )
    near = [ENVIRONMENT_PREFIX + found.replace(".", "__").upper() for found in _similar(path)]
    if near:
        return f"unknown key; did you mean {' or '.join(near)}?"
    return "unknown key; variables are named like CHRONOS_LOG__KIND, with '__' between levels"


def not_yaml(context: str, problem: str) -> str:
    """Return the text about what is not YAML: the parser's reason, with a hint for the two most
    common mistakes."""
    hint = ""
    if "alias" in context:
        hint = '; quote a value that starts with *, as in "*"'
    elif "'\\t'" in problem:
        hint = "; indent with spaces, not tabs"
    return f"is not YAML: {problem.splitlines()[0] if problem else context}{hint}"


def contents(parent: str) -> str:
    """The keys of a section."""
    names = ", ".join(found.name for found in children(parent))
    if not parent:
        return f"there are {names}"
    return f"{parent} has {names or 'no keys of its own'}"


def _similar(path: str) -> list[str]:
    """Keys that may have been meant: by the same letters, in the same section, of the same name
    elsewhere."""
    parent, _, last = path.rpartition(".")
    siblings = {_letters(found.name): found.path for found in children(parent)}
    same = [found for found in keys() if _letters(found) == _letters(path)]
    near = [
        siblings[letters]
        for letters in get_close_matches(_letters(last), siblings, n=1, cutoff=0.7)
    ]
    elsewhere = [found.path for found in keys().values() if _letters(found.name) == _letters(last)]
    close = get_close_matches(path, keys(), n=1, cutoff=0.8)
    return same or near or (close or elsewhere if parent else elsewhere or close)


def _letters(text: str) -> str:
    """A name without case and punctuation: `bootstrapServers` and `bootstrap-servers` are the
    same."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def plain(value: Any) -> str:
    """A value on one line of YAML."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "null"
    return json.dumps(value) if isinstance(value, list | dict) else str(value)
