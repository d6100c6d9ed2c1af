"""Checks JSON against the types of `schemas` and names every error, by field and in plain words.

Decoders of msgspec stop at the first error. They run first, on every request; what they refuse is checked again here,
field by field, so that the answer lists all errors.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import fields

from chronos.admin.problems import ProblemError, invalid
from chronos.admin.schemas import FAULTS_MAX, PATTERN_TEXTS, Fault

VALUES_MAX = 1_000_000
"""JSON values of a body, estimated from above, up to which all errors are searched for: some hundred MB as Python objects.
The answer to a body with more values has its first error only."""

NAME_SHOWN = 100
"""Characters of a name from a request that an error repeats."""

JSON_NAMES = {
    "int": "an integer", "float": "a number", "str": "a string", "bool": "a boolean", "object": "an object",
    "array": "an array", "null": "null",
}  # fmt: skip

UNIONS = (Union, UnionType)

T = TypeVar("T")

_TEXTS = {repr(pattern): text for pattern, text in PATTERN_TEXTS.items()}
_PATH = re.compile(r" - at .*$", re.DOTALL)
_INDEX = re.compile(r"(?:\[([0-9]+)\])?\.?(.*)", re.DOTALL)
_NAME = re.compile(r"Object (?:missing required|contains unknown) field `(.*)`", re.DOTALL)
_TYPE = re.compile(r"Expected `([a-z| ]+)`, got `([a-z]+)`")
_PATTERN = re.compile(r"Expected `str` matching regex (.*)", re.DOTALL)
_BOUND = re.compile(r"Expected `[a-z]+` (>=|<=) (-?[0-9]+)")
_LENGTH = re.compile(r"Expected `([a-z]+)` of length (>=|<=) ([0-9]+)")
_MULTIPLE = re.compile(r"Expected `int` that's a multiple of ([0-9]+)")


def decode_body(decode: Callable[[bytes], T], kind: Any, body: bytes) -> T:
    """The body, decoded; ProblemError with status 400 when it is not JSON, 422 with all errors when it does not fit `kind`."""
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        data = with_integers(decode_json(body, error))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(error) from None
    faults = list(check(data, kind))
    if faults:
        raise invalid_faults(faults)
    return cast(T, msgspec.convert(data, kind))


def decode_json(body: bytes, refused: msgspec.ValidationError) -> Any:
    """A refused body as plain Python values, to search it for all errors.

    ProblemError with status 400 when the body is not JSON, 422 with the first error when it has too many values.
    """
    if body.count(b",") + body.count(b"[") + body.count(b"{") > VALUES_MAX:
        fault = _first_fault(str(refused))
        raise invalid_faults([fault], is_batch=fault.index is not UNSET)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(error) from None


def _first_fault(error: str) -> Fault:
    """The error that msgspec found first, with the index and the field of its path."""
    text, _, path = error.partition(" - at `$")
    index, field = _INDEX.fullmatch(path.rstrip("`")).groups("")  # type: ignore[union-attr]
    name = _NAME.search(text)
    if name is not None:
        field = f"{field}.{name[1]}".lstrip(".")
        text = "required field is missing" if "missing" in text else "unknown field"
    return Fault(detail=plain_text(text, None), field=field or UNSET, index=int(index) if index else UNSET)


def with_integers(data: Any) -> Any:
    """An object whose fields with numbers such as 5.0 are integers, which they are in JSON Schema and not in msgspec."""
    if not isinstance(data, dict):
        return data
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in data.items()
    }


def malformed(error: Exception) -> ProblemError:
    """400: the body is not JSON."""
    return ProblemError(400, "malformed", str(error), hint="send one JSON object, or an array of them")


def invalid_faults(
    faults: list[Fault], *, total: int | None = None, hint: str | None = None, is_batch: bool = False
) -> ProblemError:
    """422 with at least one error: the detail repeats the first one and counts the others.

    `total` is the number of errors where `faults` holds only the first ones. The detail names the element of a batch.
    """
    assert faults
    total = len(faults) if total is None else total
    first = faults[0]
    index = f"message {first.index}" if is_batch else ""
    where = "".join(f"{part}: " for part in (index, first.field or "") if part)
    more = f" (and {total - 1} more)" if total > 1 else ""
    problem = invalid(f"{where}{first.detail}{more}", faults[:FAULTS_MAX], hint=hint)
    if total > FAULTS_MAX:
        problem.problem.errors_total = total
    return problem


def check(
    data: Any, kind: Any, *, strict: bool = True, noun: str = "field", path: str = "", suggests: bool = True
) -> Iterator[Fault]:
    """The errors of decoded JSON against a type, in the order of the type's fields.

    `strict` is that of `msgspec.convert`. `noun` is the word for a field in the texts, `path` the field that `data` is from.
    `suggests`: errors for unknown names suggest a known one, which takes some time.
    """
    struct = _struct_of(kind)
    if struct is None or not isinstance(data, dict):
        text = _error(data, kind, strict=strict)
        if text is not None:
            yield Fault(detail=text, field=path or UNSET)
        return
    known = {each.encode_name: each for each in fields(struct)}
    for name, each in known.items():
        where = f"{path}.{name}" if path else name
        if name in data:
            yield from check(data[name], each.type, strict=strict, noun=noun, path=where, suggests=suggests)
        elif each.required:
            yield Fault(detail=f"required {noun} is missing", field=where)
    for count, name in enumerate(each for each in data if each not in known):
        shown = str(name)[:NAME_SHOWN]
        close = _meant(shown, known) if suggests and count < FAULTS_MAX else None
        meant = f"; did you mean {close}?" if close else ""
        yield Fault(detail=f"unknown {noun}{meant}", field=f"{path}.{shown}" if path else shown)


def _meant(name: str, known: Mapping[str, Any]) -> str | None:
    """The field that was meant: one of an object inside, or one with a similar name."""
    for outer, each in known.items():
        inner = _struct_of(each.type)
        if inner is not None and any(name == one.encode_name for one in fields(inner)):
            return f"{outer}.{name}"
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def _error(data: Any, kind: Any, *, strict: bool) -> str | None:
    """Why the data is not of the type, in plain words; None: it is."""
    is_mapping = any(get_origin(each) is dict for each in _members(kind))
    for name, value in data.items() if is_mapping and isinstance(data, dict) else ():
        text = _convert_error({name: value}, kind, strict=strict)
        if text is not None:
            return f"{str(name)[:NAME_SHOWN]!r}: {text}"
    return _convert_error(data, kind, strict=strict)


def _convert_error(data: Any, kind: Any, *, strict: bool) -> str | None:
    try:
        msgspec.convert(data, kind, strict=strict)
    except msgspec.ValidationError as error:
        return plain_text(str(error), kind)
    return None


def plain_text(error: str, kind: Any) -> str:
    """The text of a msgspec error without type names of Python, regular expressions and paths."""
    text = _PATH.sub("", error)
    if match := _TYPE.fullmatch(text):
        expected = [JSON_NAMES[name] for name in match[1].split(" | ") if name in JSON_NAMES]
        return f"must be {' or '.join(expected)}, not {JSON_NAMES.get(match[2], match[2])}"
    if match := _PATTERN.fullmatch(text):
        return _TEXTS.get(match[1], "has the wrong form")
    if match := _BOUND.fullmatch(text):
        return f"must be {'at least' if match[1] == '>=' else 'at most'} {match[2]}"
    if match := _LENGTH.fullmatch(text):
        unit = "characters" if match[1] == "str" else "elements"
        if (match[2], match[3]) == (">=", "1"):
            return "must not be empty"
        return f"must have {'at least' if match[2] == '>=' else 'at most'} {match[3]} {unit}"
    if match := _MULTIPLE.fullmatch(text):
        return f"must be a multiple of {match[1]}"
    if text.startswith("Invalid enum value"):
        choices = ", ".join(map(str, _choices(kind)))
        return f"must be one of {choices}" if choices else "is not one of the possible values"
    return text.replace("`", "")


def _struct_of(kind: Any) -> type[Struct] | None:
    """The one Struct of a type, which may be annotated or optional."""
    members = list(_members(kind))
    is_struct = len(members) == 1 and isinstance(members[0], type) and issubclass(members[0], Struct)
    return members[0] if is_struct else None


def _members(kind: Any) -> Iterator[Any]:
    """The types of a union, without annotations and without UNSET."""
    if get_origin(kind) is Annotated:
        yield from _members(get_args(kind)[0])
    elif get_origin(kind) in UNIONS:
        for each in get_args(kind):
            yield from _members(each)
    elif kind is not UnsetType:
        yield kind


def _choices(kind: Any) -> list[Any]:
    return [choice for each in _members(kind) if get_origin(each) is Literal for choice in get_args(each)]


def query_faults(query: Mapping[str, Any], kind: type[Struct]) -> list[Fault]:
    """The errors of the parameters of a query."""
    return list(check(dict(query), kind, strict=False, noun="parameter"))
