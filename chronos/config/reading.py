"""Settings from a file, variables and flags; every problem with its place.

Texts are kept as they were written until the kind of their key is known: `007` is a name where a
name is wanted, and a password in a variable or flag may contain any character that has a meaning in
YAML. So the file is read as a tree of nodes with their lines, and a variable or flag becomes such a
node too."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from chronos.config.catalogue import MASK, PROPERTIES, Key, is_secret, keys, map_of, split
from chronos.config.constraints import conflicts
from chronos.config.messages import (
    ENVIRONMENT_PREFIX,
    contents,
    not_yaml,
    unknown_key,
    unknown_variable,
    wrong_value,
)
from chronos.config.model import Config
from chronos.errors import ConfigurationError

OF_THE_COMMAND_LINE: Final = frozenset(
    {
        "CHRONOS_ARCHIVE",
        "CHRONOS_CONFIG",
        "CHRONOS_SERVER",
        "CHRONOS_TOKEN",
        "CHRONOS_CERT",
        "CHRONOS_CERT_KEY",
        "CHRONOS_CA",
    }
)
"""Variables that the command line and the client read themselves."""

# What YAML 1.1 reads as nothing and as a switch; said here for texts that are not in a YAML file.
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})

_ON: Final = frozenset({"on", "yes", "true"})

_SWITCHES: Final = _ON | {"off", "no", "false"}

_NULL_TAG: Final = "tag:yaml.org,2002:null"

_SWITCH_TAG: Final = "tag:yaml.org,2002:bool"

_TEXT_TAG: Final = "tag:yaml.org,2002:str"

_Path = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, order=True)
class _Origin:
    """Where a setting was given. Problems are listed in this order: the file by line, variables,
    flags."""

    rank: int
    line: int = 0
    label: str = ""


_FILE, _VARIABLE, _FLAG, _NOWHERE = 0, 1, 2, _Origin(rank=3)


@dataclass
class _Reading:
    """The settings read so far, and their problems."""

    values: dict[_Path, Any] = field(default_factory=dict)
    origins: dict[_Path, _Origin] = field(default_factory=dict)
    problems: list[tuple[_Origin, str]] = field(default_factory=list)

    def give(self, path: str, value: str | list[str] | None, origin: _Origin) -> None:
        texts = value if isinstance(value, list) else [value or ""]
        if any(MASK in text for text in texts):
            self.complain(
                origin, path, "is the mask that `chronos config show` prints; give the value itself"
            )
        self.values[split(path)], self.origins[split(path)] = value, origin

    def complain(self, origin: _Origin, path: str, text: str) -> None:
        line = ": ".join(part for part in (origin.label, path, text) if part)
        self.problems.append((origin, " ".join(line.splitlines())))

    def lines(self) -> list[str]:
        return [line for _, line in sorted(self.problems, key=lambda problem: problem[0])]


def load(path: str | None, environ: Mapping[str, str], overrides: Sequence[str]) -> Config:
    """The configuration from a YAML file (or none), `CHRONOS_*` variables and `path=value`
    overrides.

    Raises `ConfigurationError` with every problem, one line each: `<origin>: <key>: <problem>;
    <hint>`, where the origin is `<file>:<line>`, the name of a variable, or `--set`."""
    reading = _Reading()
    if path is not None:
        _read_file(reading, path)
    _read_variables(reading, environ)
    _read_overrides(reading, overrides)
    config = _check(reading)
    if config is None or reading.problems:
        raise ConfigurationError(reading.lines())
    return config


def _read_file(reading: _Reading, path: str) -> None:
    def where(node: yaml.Node) -> _Origin:
        line = node.start_mark.line + 1
        return _Origin(rank=_FILE, line=line, label=f"{path}:{line}")

    whole = _Origin(rank=_FILE, label=path)
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return reading.complain(whole, "", f"is not UTF-8 text, at byte {error.start}")
    except OSError as error:
        return reading.complain(whole, "", f"cannot be read: {error.strerror}")
    node = _compose(reading, text, whole, "")
    if node is None or node.tag == _NULL_TAG:
        return None
    if not isinstance(node, yaml.MappingNode):
        return reading.complain(where(node), "", f"must hold keys and values, not {_shape(node)}")
    return _Tree(reading=reading, where=where).section("", node)


def _read_variables(reading: _Reading, environ: Mapping[str, str]) -> None:
    # In order of their names a section comes before its keys, so the more specific variable wins.
    for name in sorted(environ):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in OF_THE_COMMAND_LINE:
            continue
        written = name.removeprefix(ENVIRONMENT_PREFIX).replace("__", ".")
        path = written.lower()
        mapping = map_of(path)
        if mapping is not None and not written.isupper():
            # The name of an item, such as a topic, as it is written.
            path = mapping + written[len(mapping) :]
        if path.startswith(f"{PROPERTIES}."):
            path = path.replace(
                "_", "."
            )  # No property has a '_', and few shells take a '.' in a name.
        origin = _Origin(rank=_VARIABLE, label=name)
        if not _read_text(reading, path, environ[name], origin):
            reading.complain(origin, "", unknown_variable(path, environ[name]))


def _read_overrides(reading: _Reading, overrides: Sequence[str]) -> None:
    for index, override in enumerate(overrides):
        origin = _Origin(rank=_FLAG, line=index, label="--set")
        path, equals, text = override.partition("=")
        path = path.strip()
        if not equals:
            reading.complain(origin, path, "has no value; write path=value, for example shards=4")
        elif not _read_text(reading, path, text, origin):
            reading.complain(origin, path, unknown_key(path))


def _read_text(reading: _Reading, path: str, text: str, origin: _Origin) -> bool:
    """Read one variable or flag; false if no key has that path."""
    tree = _Tree(reading=reading, where=lambda _: origin)
    mapping = map_of(path)
    if mapping is not None:
        tree.item(mapping, path.removeprefix(f"{mapping}."), _scalar(text), origin)
        return True
    found = keys().get(path)
    if found is None:
        return False
    is_yaml = found.kind in ("section", "map") or (
        found.kind == "list" and text.lstrip().startswith("[")
    )
    node = _compose(reading, text, origin, path) if is_yaml else _scalar(text)
    if node is not None:
        tree.key(found, node, origin)
    return True


def _scalar(text: str) -> yaml.ScalarNode:
    """A text as a YAML scalar, whatever characters it contains."""
    tag = _NULL_TAG if text in _NULLS else _SWITCH_TAG if text.lower() in _SWITCHES else _TEXT_TAG
    return yaml.ScalarNode(tag, text)


def _compose(reading: _Reading, text: str, origin: _Origin, path: str) -> yaml.Node | None:
    """The tree of a YAML text; None if it is empty, or if it is not YAML, which is reported as a
    problem."""
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        if origin.rank == _FILE and error.problem_mark is not None:
            line = error.problem_mark.line + 1
            origin = _Origin(rank=_FILE, line=line, label=f"{origin.label}:{line}")
        reading.complain(origin, path, not_yaml(error.context or "", error.problem or ""))
        return None
    except yaml.YAMLError as error:
        reading.complain(origin, path, not_yaml("", str(error)))
        return None
    except RecursionError:
        reading.complain(origin, path, not_yaml("", "it is nested too deep"))
        return None
    return node


@dataclass(frozen=True, kw_only=True)
class _Tree:
    """Reads settings from YAML nodes, no deeper than the keys go."""

    reading: _Reading
    where: Callable[[yaml.Node], _Origin]

    def section(self, prefix: str, node: yaml.MappingNode) -> None:
        """Read a section, or the top level."""
        for name, value, origin in self._pairs(prefix, node):
            path = f"{prefix}.{name}" if prefix else name
            # A name with a dot is no path here: `log.kind:` would be a second way to say the same.
            found = keys().get(path) if "." not in name else None
            if found is None:
                self.reading.complain(origin, path, unknown_key(path, dotted="." in name))
            else:
                self.key(found, value, origin)

    def key(self, found: Key, node: yaml.Node, origin: _Origin) -> None:
        """Read a key and everything below it."""
        if found.kind in ("section", "map"):
            self._mapping(found, node, origin)
        elif found.kind == "list":
            self._list(found, node, origin)
        elif isinstance(node, yaml.ScalarNode):
            self.reading.give(found.path, None if node.tag == _NULL_TAG else node.value, origin)
        else:
            self.reading.complain(origin, found.path, f"must be one value, not {_shape(node)}")

    def item(self, mapping: str, name: str, node: yaml.Node, origin: _Origin) -> None:
        """Read one item of a free mapping: a property of librdkafka, or a rate."""
        path = f"{mapping}.{name}"
        is_property = mapping == PROPERTIES
        if not isinstance(node, yaml.ScalarNode):
            hint = "; write the whole name, as in sasl.username: a" if is_property else ""
            return self.reading.complain(
                origin, path, f"must be one value, not {_shape(node)}{hint}"
            )
        if node.tag == _NULL_TAG:
            left_out = {PROPERTIES: " for librdkafka's default", "delivery.rates": " for no limit"}
            return self.reading.complain(
                origin, path, f"has no value; leave it out{left_out.get(mapping, '')}"
            )
        text = str(node.value)
        # librdkafka knows true and false only, YAML on and off too. A password stays what it is.
        if is_property and node.tag == _SWITCH_TAG and not is_secret(name):
            text = "true" if text.lower() in _ON else "false"
        return self.reading.give(path, text, origin)

    def _mapping(self, found: Key, node: yaml.Node, origin: _Origin) -> None:
        if node.tag == _NULL_TAG:
            return None  # A heading whose keys are all commented out.
        if not isinstance(node, yaml.MappingNode):
            what = contents(found.path) if found.model else "write it as {name: value}"
            return self.reading.complain(
                origin, found.path, f"is a section, not {_shape(node)}; {what}"
            )
        if found.model:
            return self.section(found.path, node)
        for name, value, at in self._pairs(found.path, node):
            self.item(found.path, name, value, at)
        return None

    def _list(self, found: Key, node: yaml.Node, origin: _Origin) -> None:
        if isinstance(node, yaml.ScalarNode):
            parts = (
                None if node.tag == _NULL_TAG else [part.strip() for part in node.value.split(",")]
            )
            self.reading.give(found.path, parts, origin)
        elif isinstance(node, yaml.SequenceNode) and all(
            isinstance(item, yaml.ScalarNode) for item in node.value
        ):
            self.reading.give(found.path, [str(item.value) for item in node.value], origin)
        else:
            self.reading.complain(
                origin, found.path, 'must be a flat list, such as ["orders-*", audit]'
            )

    def _pairs(self, prefix: str, node: yaml.MappingNode) -> list[tuple[str, yaml.Node, _Origin]]:
        """Names and values of a mapping. A repeated name is a problem: YAML would drop the first
        one."""
        pairs: dict[str, tuple[str, yaml.Node, _Origin]] = {}
        for key_node, value in node.value:
            name, origin = str(key_node.value), self.where(key_node)
            path = f"{prefix}.{name}" if prefix else name
            if name in pairs:
                line = pairs[name][2].line
                first = f"on line {line} " if origin.rank == _FILE else ""
                self.reading.complain(origin, path, f"was given {first}already; keep one of them")
            elif not isinstance(key_node, yaml.ScalarNode):
                self.reading.complain(
                    origin, prefix, f"holds {_shape(key_node)} where a key must be"
                )
            else:
                pairs[name] = (name, value, origin)
        return list(pairs.values())


def _shape(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "a list" if isinstance(node, yaml.SequenceNode) else "one value"


def _check(reading: _Reading) -> Config | None:
    """The configuration that was read. Wrong values are left out, so that the rest is still
    checked."""
    wrong: set[_Path] = set()
    try:
        config = Config.model_validate(_nested(reading.values))
    except ValidationError as error:
        wrong = {_check_conflict(reading, details) for details in error.errors()}
        reading.values = {
            path: value for path, value in reading.values.items() if path not in wrong
        }
        try:
            config = Config.model_validate(_nested(reading.values))
        except ValidationError:
            return None  # A default is wrong: the name of this host.
    for conflict in conflicts(config):
        paths = [split(path) for path in conflict.paths]
        if wrong.isdisjoint(paths):
            origin = next(
                (reading.origins[path] for path in paths if path in reading.origins), _NOWHERE
            )
            reading.complain(origin, conflict.paths[0], conflict.text)
    return config


def _check_conflict(reading: _Reading, details: ErrorDetails) -> _Path:
    """Report what is wrong with one value; returns its path."""
    steps = tuple(str(step) for step in details["loc"])
    # The longest prefix that is a key: a place inside a list belongs to the list.
    path = next(steps[:end] for end in range(len(steps), 0, -1) if ".".join(steps[:end]) in keys())
    found = keys()[".".join(path)]
    if found.kind == "map":
        path = steps[: len(path) + 1]
    reading.complain(
        reading.origins.get(path, _NOWHERE), ".".join(path), wrong_value(found, details)
    )
    return path


def _nested(values: Mapping[_Path, Any]) -> dict[str, Any]:
    """Values as a tree with every section: pydantic then names the section of a wrong default."""
    sections: dict[_Path, dict[str, Any]] = {(): {}}
    for found in keys().values():
        if found.kind in ("section", "map"):
            path = split(found.path)
            sections[path] = sections[path[:-1]][found.name] = {}
    for path, value in values.items():
        sections[path[:-1]][path[-1]] = value
    return sections[()]
