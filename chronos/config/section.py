"""What the sections of the configuration are made of."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from chronos.config.values import duration_ms, size_bytes
from chronos.core.timefmt import UNIT_MS


def key(default: object, meaning: str, *, least: object = None, most: object = None) -> Any:
    """A key: its default and bounds as they are written in a file, its meaning with unit and reason."""
    return Field(default, description=meaning, validate_default=True, ge=_number(least), le=_number(most))


def _number(bound: object) -> int | None:
    if bound is None or isinstance(bound, int):
        return bound
    return duration_ms(bound) if str(bound).endswith(tuple(UNIT_MS)) else size_bytes(bound)


class Section(BaseModel):
    """A section: frozen, without unknown keys; an error does not show the value, which may be a password."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
