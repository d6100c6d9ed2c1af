"""Documents made from the keys: the settings in effect, the reference, the example file."""

import re
import textwrap
from collections.abc import Sequence
from typing import Any, Final

import yaml
from pydantic import BaseModel

from chronos.config.catalogue import MAPS, MASK, PROPERTIES, Key, children, is_secret, keys
from chronos.config.messages import plain
from chronos.config.model import Config


def show(config: Config) -> str:
    """The effective configuration as YAML that `load` reads back, except for secrets, which are
    masked."""
    return yaml.safe_dump(in_effect(config), sort_keys=False, allow_unicode=True, width=110)


def in_effect(section: BaseModel, prefix: str = "") -> dict[str, Any]:
    """The effective configuration, or the part of it below a prefix, as a tree of plain values."""
    tree: dict[str, Any] = {}
    for name in type(section).model_fields:
        found, value = keys()[prefix + name], getattr(section, name)
        if found.model:
            tree[name] = in_effect(value, f"{found.path}.")
        elif found.kind == "map":
            hides = found.path == PROPERTIES
            tree[name] = {
                item: MASK if hides and is_secret(item) else text for item, text in value.items()
            }
        elif value is not None and is_secret(name):
            tree[name] = MASK
        elif found.kind == "text" and value is not None:
            tree[name] = re.sub(r"(?<=://)[^/]*@", f"{MASK}@", value)  # A URL may hold a password.
        else:
            tree[name] = found.written(value)
    return tree


_REFERENCE_HEAD: Final = """\
# Configuration reference

<!-- Made by `python -m chronos.config`; change `chronos/config/model.py` instead. -->

Settings come from one YAML file (`--config`, or `CHRONOS_CONFIG`), then from `CHRONOS_*` variables, then
from `--set` flags; the later wins, key by key. These say the same:

| where | how |
|---|---|
| file | `log:` and, indented below it, `kind: kafka` |
| variable | `CHRONOS_LOG__KIND=kafka` (`__` between levels; names of topics as they are written, or in capitals for lower case) |
| flag | `--set log.kind=kafka` |

- A **duration** is a number and a unit: `250ms`, `1.5s`, `90s`, `15m`, `2h`, `7d`, or several of them: `1h30m`. No bare number.
- A **size** is bytes, or one number and a unit: `65536`, `8MB` (8,000,000), `64MiB` (67,108,864).
- A **switch** is `on` or `off` (or `yes`, `no`, `true`, `false`).
- A **list** is `["a", "b"]` or `a,b`. In YAML, a value that starts with `*` must be quoted.
- `null` stands for "not set", where it is allowed.

Everything that is wrong is reported at once, each with where it came from; so are settings that do not go
together. `chronos config check` does only that; `chronos config show` prints the settings in effect, with
secrets masked. `config/chronos.yaml` is a file with every key at its default.
"""  # noqa: E501


def reference() -> str:
    """`docs/reference/configuration.md`: every key with its default, what it allows, and why."""
    parts = [_REFERENCE_HEAD, "\n## Top level\n\n", _table(children(""))]
    for section in (found for found in keys().values() if found.model):
        parts.append(f"\n## {section.path}\n\n{section.meaning}\n\n")
        parts.append(_table(children(section.path)))
    return "".join(parts)


def _table(rows: Sequence[Key]) -> str:
    lines = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for row in rows:
        if row.model:
            lines.append(f"| `{row.path}` | | | [section](#{row.path.replace('.', '')}) |")
        else:
            default = "the host's name" if row.path == "node.id" else f"`{plain(row.default)}`"
            lines.append(f"| `{row.path}` | {default} | {_allowed(row)} | {row.meaning} |")
    return "\n".join(lines) + "\n"


def _allowed(found: Key) -> str:
    least, most = found.bounds
    text = {
        "choice": ", ".join(f"`{choice}`" for choice in found.choices),
        "number": f"{least} to {most}",
        "map": MAPS.get(found.path, ""),
    }.get(found.kind, f"{found.kind}, {least} to {most}" if most is not None else found.kind)
    return f"{text}, or null" if found.optional else text


_EXAMPLE_HEAD: Final = """\
# Every setting of Chronos at its default, with its reason.
# Made by `python -m chronos.config example`; change chronos/config/model.py instead.
#
# Copy only the settings you change; all others keep their defaults. Variables (CHRONOS_LOG__KIND=kafka) override
# this file, and flags (--set log.kind=kafka) override both. `chronos config check` reports every mistake.
"""  # noqa: E501


def example() -> str:
    """`config/chronos.yaml`: every key with its default, and its reason as a comment."""
    parts = [_EXAMPLE_HEAD]
    for found in keys().values():
        indent = "  " * found.path.count(".")
        above = "\n" if found.model or not indent else ""
        comment = textwrap.fill(found.meaning, 100, initial_indent="# ", subsequent_indent="# ")
        parts.append(above + textwrap.indent(f"{comment}\n{_assignment(found)}\n", indent))
    return "".join(parts)


def _assignment(found: Key) -> str:
    if found.path == "node.id":
        return "# id: <hostname>"
    return f"{found.name}:" if found.model else f"{found.name}: {plain(found.default)}"
