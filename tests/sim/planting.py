"""Plant a fault in the real code by changing a text in it: `with planted(FAULTS[name]): ...`.

A change names the text alone, wherever in `chronos` it stands, so that code can be moved and
renamed without an edit of the tables; line breaks within brackets do not matter. When the text
itself is gone, planting fails, and the table has to be adapted. Packages that no simulator runs are
not looked through."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from tests.harness.pages import ROOT, parsed


class Change(NamedTuple):
    """A text of the code and its replacement."""

    text: str
    """`...` stands for any text."""
    replacement: str
    within: str = ""
    """Name of the class, the function or both (`Master._pull`) that the text is looked for in,
    where it stands in others as well."""


NOT_SIMULATED = ("admin", "cli", "spark")

Faults = Mapping[str, Sequence[Change]]
"""The changes of each fault, by its name."""


@contextmanager
def planted(changes: Sequence[Change]) -> Iterator[None]:
    """Plant a fault for the duration of a `with`. Raises LookupError if a text of it does not stand
    in the code exactly once."""
    before: dict[FunctionType, CodeType] = {}
    try:
        sources: dict[FunctionType, str] = {}
        for change in changes:
            place = place_of(change)
            function = place.function()
            sources[function] = _changed(sources.get(function, place.source), change)
            before.setdefault(function, function.__code__)
            # The code and not the name: every module that has imported the function calls it.
            function.__code__ = _compiled(function, sources[function])
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code


class Place(NamedTuple):
    """A function of the package: one of a module or of a class, with all functions within it."""

    module: str
    name: str
    source: str

    def function(self) -> FunctionType:
        """Return the function itself, without its decorators."""
        found: Any = importlib.import_module(self.module)
        for part in self.name.split("."):
            found = found.__dict__[part]
        while not isinstance(found, FunctionType) or hasattr(found, "__wrapped__"):
            found = next(
                getattr(found, inner)
                for inner in ("__wrapped__", "__func__", "fget", "func")
                if hasattr(found, inner)
            )
        return found


@cache
def _sources() -> dict[Path, str]:
    return {
        path: path.read_text()
        for path in sorted((ROOT / "chronos").rglob("*.py"))
        if path.relative_to(ROOT).parts[1] not in NOT_SIMULATED
    }


@cache
def _places(path: Path) -> list[Place]:
    source = _sources()[path]
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    lines, found = source.splitlines(), []
    for name, node in _functions(parsed(source)):
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        found.append(Place(module, name, textwrap.dedent(text)))
    return found


def _functions(
    tree: ast.Module | ast.ClassDef,
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{name}", each) for name, each in _functions(node))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node


@cache
def place_of(change: Change) -> Place:
    """Return the function that has the text. Raises LookupError if there is none or several."""
    pattern = re.compile(_pattern(change.text), re.DOTALL)
    # Only modules with the longest word of the text are parsed and searched.
    word = max(re.findall(r"\w+", change.text), key=len, default="")
    found = [
        place
        for path, source in _sources().items()
        if word in source
        for place in _places(path)
        if f".{change.within}." in f".{place.name}." or not change.within
        for _ in pattern.finditer(place.source)
    ]
    if len(found) != 1:
        raise LookupError(
            f"the code has this text {len(found)} times, not once: {change.text!r} in "
            + ", ".join(f"{place.module}.{place.name}" for place in found)
        )
    return found[0]


def _changed(source: str, change: Change) -> str:
    found = re.search(_pattern(change.text), source, re.DOTALL)
    if found is None:
        raise LookupError(f"another change of the fault has removed this text: {change.text!r}")
    start, end = found.span()
    body = ast.parse(source).body[0].body[0]  # type: ignore[attr-defined]
    if source.count("\n", 0, start) + 1 < body.lineno:
        raise LookupError(f"only the body of a function is replaced: {change.text!r}")
    line = source.rindex("\n", 0, start) + 1
    if "\n" in change.replacement and source[line:start].strip():
        raise LookupError("several lines can only replace whole lines")
    indented = change.replacement.replace("\n", "\n" + " " * (start - line))
    return source[:start] + indented + source[end:]


def _compiled(function: FunctionType, source: str) -> CodeType:
    names: dict[str, Any] = {}
    where = f"<planted in {function.__module__}.{function.__qualname__}>"
    exec(compile(source, where, "exec"), function.__globals__, names)
    code: CodeType = names[function.__name__].__code__
    return code


def _pattern(text: str) -> str:
    """Return a pattern that finds a text in code however the formatter has broken it into lines."""
    parts = []
    for token in re.findall(r"\.\.\.|\w+|[^\w\s]|\s+", text):
        if token == "...":
            parts.append(".*?")
        elif token.isspace():
            parts.append(r"\s+")
        else:
            before = r",?\s*" if token in ")]}" else ""
            after = r"\s*" if token in "([{" else ""
            parts.append(before + re.escape(token) + after)
    return "".join(parts)
