"""The pages of the documentation, taken apart: code blocks, inline code, tables. Reads files only;
checks nothing."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache, update_wrapper
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
assert PAGES

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def page_name(page: Path) -> str:
    """The path of a page in the repository."""
    return str(page.relative_to(ROOT))


def on_every_page(check: Callable[[Path], None]) -> Callable[[], None]:
    """Return the test that checks every page and fails with all the pages that are wrong."""

    def test() -> None:
        wrong = []
        for page in PAGES:
            try:
                check(page)
            except Exception as error:
                error.add_note(page_name(page))
                wrong.append(error)
        if wrong:
            raise ExceptionGroup("pages are wrong", wrong)

    update_wrapper(test, check)
    del test.__wrapped__  # type: ignore[attr-defined]  # pytest would ask for its parameters
    return test


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """The code blocks of a page in these languages, without their indent."""
    for indent, language, text in FENCE.findall(page.read_text()):
        if language in languages:
            yield "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", page.read_text())


def inline(page: Path) -> list[str]:
    """The texts between single backticks."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of all tables below a heading, up to the next heading of its rank or above."""
    rank = len(heading) - len(heading.lstrip("#"))
    text = page.read_text()
    assert f"\n{heading}\n" in text, f"{page.name} has no {heading!r}"
    section = re.split(rf"\n#{{1,{rank}}} ", text.split(f"\n{heading}\n", 1)[1], maxsplit=1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    # A bar between spaces ends a cell, also an empty one.
    cells = [
        re.split(r" \|(?= )", line.strip("|")) for line in lines if not line.startswith("|---")
    ]
    return [[cell.strip() for cell in row] for row in cells]


@cache
def parsed(source: str) -> ast.Module:
    """Return the tree of a source text; nobody changes it."""
    return ast.parse(source)
