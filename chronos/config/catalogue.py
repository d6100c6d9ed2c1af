"""The keys of the configuration as data: the name of each, the kind of its value, and how the value
is written.

Made from the models once. What reading, error texts and documents know of a key is from here; only
the check of a value, and the walk over a configuration that is shown, ask the models."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from chronos.config.model import Config
from chronos.config.values import duration_ms, size_bytes, size_text
from chronos.core.timefmt import format_duration

# The free mappings: the rest of a path below one is the name of a property, or a pattern of topics,
# which contains dots.
PROPERTIES: Final = "log.kafka.properties"
MAPS: Final = {PROPERTIES: "properties", "delivery.rates": "rates"}
"""By path: what its items are."""

MASK: Final = "********"

# Keys and properties whose values are passwords, private keys or tokens; `admin.tokens` is a path.
_SECRET: Final = re.compile(
    r"passw|passphrase|secret|key\.pem|private|token(?!\.endpoint|s$)|oauthbearer\.config"
)

_KIND_BY_MARK: Final = {
    BeforeValidator(duration_ms): "duration",
    BeforeValidator(size_bytes): "size",
}
_KIND_BY_TYPE: Final = {Mapping: "map", tuple: "list", bool: "switch", int: "number", str: "text"}


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key or section."""

    path: str  #: dotted, for example `log.kafka.bootstrap_servers`
    kind: str  #: section, map, list, switch, choice, duration, size, number or text
    meaning: str  #: what it does, its unit, and the reason for its default
    field: FieldInfo  #: where default and bounds come from
    model: type[BaseModel] | None = None  #: of a section
    choices: tuple[str, ...] = ()  #: of a choice
    optional: bool = False  #: true if it may be null

    @property
    def name(self) -> str:
        """The last step of the path."""
        return self.path.rpartition(".")[2]

    @property
    def parent(self) -> str:
        """The path of its section; empty at the top."""
        return self.path.rpartition(".")[0]

    @property
    def bounds(self) -> tuple[Any, Any]:
        """Least and greatest value, as written; each None where there is no such bound."""
        least = next((mark.ge for mark in self.field.metadata if hasattr(mark, "ge")), None)
        most = next((mark.le for mark in self.field.metadata if hasattr(mark, "le")), None)
        return self.written(least), self.written(most)

    @property
    def default(self) -> Any:
        """The default, as written."""
        return self.written(self.field.get_default(call_default_factory=True, validated_data={}))

    def written(self, value: Any) -> Any:
        """A value as a person writes it in YAML: `90s` for 90000."""
        if value is None:
            return None
        if self.kind == "duration":
            return format_duration(duration_ms(value))
        if self.kind == "size":
            return size_text(size_bytes(value))
        return list(value) if self.kind == "list" else value


@cache
def keys() -> Mapping[str, Key]:
    """Every key and section by its dotted path, each section before what is in it."""
    return {found.path: found for found in _keys_of(Config, "")}


def children(parent: str) -> list[Key]:
    """The keys and sections directly in a section, or at the top."""
    return [found for found in keys().values() if found.parent == parent]


def split(path: str) -> tuple[str, ...]:
    """A dotted path as steps; a name in a free mapping is one step."""
    found = map_of(path)
    if found is not None:
        return (*found.split("."), path.removeprefix(f"{found}."))
    return tuple(path.split("."))


def map_of(path: str) -> str | None:
    """The free mapping that a dotted path names an item of; None if it names none."""
    return next((name for name in MAPS if path.startswith(f"{name}.")), None)


def is_secret(name: str) -> bool:
    """Return whether a property's value must not be shown."""
    return _SECRET.search(name) is not None


def _keys_of(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        found = _key_of(prefix + name, field)
        yield found
        if found.model is not None:
            yield from _keys_of(found.model, f"{found.path}.")


def _key_of(path: str, field: FieldInfo) -> Key:
    shape: Any = field.annotation
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        meaning = " ".join(str(shape.__doc__).split())
        return Key(path=path, kind="section", meaning=meaning, field=field, model=shape)
    optional = NoneType in get_args(shape)
    if optional:
        shape = next(part for part in get_args(shape) if part is not NoneType)
    if get_origin(shape) is Annotated:
        shape = get_args(shape)[0]
    choices = get_args(shape) if get_origin(shape) is Literal else ()
    kind = next((_KIND_BY_MARK[mark] for mark in field.metadata if mark in _KIND_BY_MARK), None)
    kind = kind or ("choice" if choices else _KIND_BY_TYPE[get_origin(shape) or shape])
    meaning = str(field.description)
    return Key(
        path=path, kind=kind, meaning=meaning, field=field, choices=choices, optional=optional
    )
