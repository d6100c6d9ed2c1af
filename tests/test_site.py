"""The documentation as a site: it is built without a warning, looks as the pages do elsewhere, and
needs no other server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from chronos.admin.http.routes import table
from chronos.cli.__main__ import contents
from tests.harness.pages import DOCS, ROOT

BLOCKS = {"blockquote", "h1", "h2", "h3", "h4", "li", "ol", "pre", "table", "tr", "ul"}


class Blocks(HTMLParser):
    """Counts the blocks of an article, and collects what the page loads."""

    def __init__(self, html: str, *, is_article: bool = False) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.loads: list[str] = []
        self._is_article = is_article
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Count a block, and note what is loaded."""
        self._is_article |= tag == "article"
        if self._is_article and tag in BLOCKS:
            self.counts[tag] += 1
        link = "href" if tag == "link" else "src"
        self.loads += [value or "" for name, value in attributes if name == link and tag != "a"]

    def handle_endtag(self, tag: str) -> None:
        """Notice the end of the article."""
        self._is_article &= tag != "article"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the pages and, in `site`, the site built from them."""
    directory = tmp_path_factory.mktemp("docs")
    subprocess.run([sys.executable, ROOT / "scripts" / "site.py", directory], check=True)
    built = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return directory


def html_of(project: Path, page: Path) -> Path:
    """The built page of a source."""
    name = "index" if page.name == "README.md" else page.stem
    return project / "site" / page.parent.relative_to(project / "pages") / f"{name}.html"


@pytest.mark.slow
def test_each_page_has_the_lists_and_tables_that_commonmark_sees(project: Path) -> None:
    """A list that is not indented as the site needs it would become a paragraph there."""
    renderer = MarkdownIt("commonmark").enable("table")
    pages = sorted((project / "pages").rglob("*.md"))
    assert len(pages) > len(list(DOCS.rglob("*.md")))
    seen = {page: Blocks(html_of(project, page).read_text()).counts for page in pages}
    wanted = {
        page: Blocks(renderer.render(page.read_text()), is_article=True).counts for page in pages
    }
    assert [page.name for page in pages if seen[page] != wanted[page]] == []


@pytest.mark.slow
def test_a_page_loads_nothing_from_other_servers(project: Path) -> None:
    """No font, script or picture: the site works where there is no Internet."""
    for page in (project / "site").rglob("*.html"):
        loads = Blocks(page.read_text()).loads
        assert loads
        assert [each for each in loads if re.match(r"(https?:)?//", each)] == []


@pytest.mark.slow
def test_the_site_has_every_call_and_every_verb_in_full(project: Path) -> None:
    """In the repository stand tables only; here each has a section, and so has each type."""
    reference = project / "site/docs/reference"
    calls, verbs = ((reference / name).read_text() for name in ("http.html", "cli.html"))
    routes = [f"{route.method} {route.path}" for route in table(None)]
    assert len(routes) > 60
    assert [each for each in routes if f">{each}<" not in calls] == []
    assert 'id="messageinfo"' in calls
    named = re.findall(r"^\| `(chronos [a-z -]+)` \|", contents(), re.MULTILINE)
    assert len(named) > 40
    assert [each for each in named if f">{each}<" not in verbs] == []
    assert "<code>--token-file</code>" in verbs


@pytest.mark.slow
def test_the_navigation_has_the_sections_of_the_index(project: Path) -> None:
    """Each section of docs/index.md is a tab."""
    sections = re.findall("^## (.+)$", (DOCS / "index.md").read_text(), re.MULTILINE)
    tabs = re.findall(
        r'class="md-tabs__link">\s*(.*?)\s*<', (project / "site/index.html").read_text()
    )
    assert [tab for tab in tabs if tab] == ["Start", *sections]


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.slow
def test_the_script_explains_itself_and_writes_nothing(option: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "site.py", option],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "scripts/site.py DIRECTORY" in done.stdout
    assert list(tmp_path.iterdir()) == []
