"""Lays out the pages of the documentation for Zensical: `scripts/site.py DIRECTORY`.

The pages keep their places in the checkout, so that links between them need no change: docs/ and
the files that it links to. Only docs/index.md moves to the top; its sections are the navigation.
The references of HTTP and of the command line are in full here, made from the code."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from chronos.admin.http import openapi
from chronos.cli import __main__ as cli

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

FULL = {"docs/reference/http.md": openapi.reference, "docs/reference/cli.md": cli.reference}
"""The pages of which the repository has the contents only, and what writes them in full."""

LINK = re.compile(r"(\[[^]]*\])\(([^)\s]+)\)")


def linked(page: Path) -> set[Path]:
    """The files of the checkout that a page links to."""
    paths = (link.partition("#")[0] for _, link in LINK.findall(page.read_text("utf-8")))
    return {found for path in paths if path and (found := (page.parent / path).resolve()).is_file()}


def pages() -> set[Path]:
    """The pages of docs/, and what can be reached from them by links."""
    found: set[Path] = set()
    left = set(DOCS.rglob("*.md"))
    while left:
        page = left.pop()
        found.add(page)
        if page.suffix == ".md":
            left |= linked(page) - found
    return found


def start_page() -> str:
    """docs/index.md with its links as seen from the top of the checkout."""

    def moved(link: re.Match[str]) -> str:
        path, sign, anchor = link[2].partition("#")
        target = (DOCS / path).resolve()
        return f"{link[1]}({target.relative_to(ROOT).as_posix()}{sign}{anchor})"

    return LINK.sub(moved, (DOCS / "index.md").read_text("utf-8"))


def navigation(start: str) -> list[dict[str, object]]:
    """The start page, and a section for each of its headings, with the links below it."""
    sections: list[dict[str, object]] = [{"Start": "index.md"}]
    for section in start.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        links = [(text[1:-1], path) for text, path in LINK.findall(body) if "#" not in path]
        sections.append({title: [{text[:1].upper() + text[1:]: path} for text, path in links]})
    return sections


def main(directory: Path) -> None:
    """Write `zensical.toml` and `pages/` into a directory."""
    shutil.rmtree(directory / "pages", ignore_errors=True)
    for page in pages() - {DOCS / "index.md"}:
        copy = directory / "pages" / page.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, copy)
    for name, reference in FULL.items():
        (directory / "pages" / name).write_text(reference(), "utf-8")
    start = start_page()
    (directory / "pages" / "index.md").write_text(start, "utf-8")
    look = (ROOT / "config" / "docs.toml").read_text("utf-8")
    # Arrays of strings and of tables with string keys are written in JSON as in TOML, but for the
    # colons.
    menu = json.dumps(navigation(start), ensure_ascii=False).replace('": ', '" = ')
    layout = f'[project]\ndocs_dir = "pages"\nsite_dir = "site"\nnav = {menu}\n'
    (directory / "zensical.toml").write_text(look.replace("[project]\n", layout, 1), "utf-8")


if __name__ == "__main__":
    if {"-h", "--help"}.intersection(sys.argv):
        print(__doc__)
    else:
        main(Path(sys.argv[1]).resolve())
