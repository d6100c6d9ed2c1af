"""The documentation says what is so: links lead somewhere, commands parse, keys, paths, texts and names exist."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import typer
import yaml
from typer.testing import CliRunner

from chronos import errors
from chronos.admin.metrics import METRICS, NODE_METRICS
from chronos.admin.routes import table
from chronos.cli.app import app
from chronos.config import load
from chronos.config.catalogue import PROPERTIES, keys
from chronos.core import message
from chronos.core.codec import Identity, IdState, State
from chronos.core.message import Entry, Reason
from chronos.core.progress import Decision, Progress

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README_LINES_MAX = 150

KAFKAS_OWN = {"retention.ms", "retention.bytes"}
"""Settings of Kafka's topics that look like ours."""

PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """The code blocks of a page in these languages, without their indent."""
    for indent, language, text in FENCE.findall(page.read_text()):
        if language in languages:
            yield "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", page.read_text())


def inline(page: Path) -> list[str]:
    """What stands between single backticks."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of all tables below a heading, up to the next heading of its rank or above."""
    rank = len(heading) - len(heading.lstrip("#"))
    text = page.read_text()
    assert f"\n{heading}\n" in text, f"{page.name} has no {heading!r}"
    section = re.split(rf"\n#{{1,{rank}}} ", text.split(f"\n{heading}\n", 1)[1], maxsplit=1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if not line.startswith("|---")]


# ----------------------------------------------------------------------------------------- Links and lengths


def test_the_readme_is_read_to_its_end() -> None:
    """It is short."""
    assert len((ROOT / "README.md").read_text().splitlines()) < README_LINES_MAX


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "") for heading in headings]
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain)


@pages
def test_every_link_leads_somewhere(page: Path) -> None:
    """Files exist, and so do the headings that links name."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_found_from_the_index() -> None:
    """No page of docs/ is an island."""
    links = re.findall(r"\]\(([^)\s]+)\)", prose(DOCS / "index.md"))
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in links}
    assert {page.resolve() for page in DOCS.rglob("*.md")} - linked == {(DOCS / "index.md").resolve()}


# ------------------------------------------------------------------------------------------------- Commands


@pages
def test_every_script_exists(page: Path) -> None:
    """`./scripts/...` is there, and can be run."""
    for name in re.findall(r"\./(scripts/[\w/-]+)", page.read_text()):
        assert (ROOT / name).stat().st_mode & 0o100, name


@cache
def verbs() -> dict[str, click.Command]:
    """The verbs of the command line."""
    command = typer.main.get_command(app)
    return dict(command.commands)  # type: ignore[attr-defined]


@pages
def test_every_verb_exists(page: Path) -> None:
    """Whatever is written as `chronos verb` can be typed."""
    for text in inline(page):
        said = re.match(r"chronos ([a-z]+)\b", text)
        assert said is None or said[1] in verbs(), text


def command_lines(page: Path) -> Iterator[list[str]]:
    """The `chronos ...` lines of the sh blocks, as arguments, without redirections."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("chronos "):
                id_states = shlex.split(line, comments=True)
                stop = next(
                    (at for at, id_state in enumerate(id_states) if id_state in ("<", ">", "|", "&")), len(id_states)
                )
                yield id_states[1:stop]


@pages
def test_every_command_parses(page: Path) -> None:
    """The command line takes what the documentation tells people to type."""
    for verb, *arguments in command_lines(page):
        command = verbs()[verb]
        if arguments and arguments[0] in getattr(command, "commands", {}):
            command = command.commands[arguments.pop(0)]  # type: ignore[attr-defined]
        context = command.make_context(verb, list(arguments))
        assert context.args == [], arguments


def test_there_are_commands_to_check() -> None:
    """The search finds them."""
    assert sum(1 for page in PAGES for _ in command_lines(page)) > 20


@pytest.mark.parametrize("verb", sorted({verb for page in PAGES for verb, *_ in command_lines(page)}))
def test_every_verb_that_is_shown_explains_itself(verb: str) -> None:
    """`--help` works."""
    shown = CliRunner().invoke(app, [verb, "--help"])
    assert shown.exit_code == 0
    assert "Usage" in shown.output


@pages
def test_python_is_python(page: Path) -> None:
    """Every Python block can be compiled."""
    for block in blocks(page, "python"):
        ast.parse(block)


# ------------------------------------------------------------------------------- Configuration, HTTP, metrics


@pages
def test_every_setting_exists(page: Path) -> None:
    """Keys in backticks and behind --set are keys."""
    known = keys()
    sections = {path for path, key in known.items() if key.kind == "section" and "." not in path}
    named = [re.match(r"([a-z_]+(?:\.[a-z_]+)+)(?![\w(.*-])", text) for text in inline(page)]
    found = {match[1] for match in named if match} | set(re.findall(r"--set ([a-z_.]+)=", page.read_text()))
    wrong = [
        path
        for path in found
        if path.split(".")[0] in sections
        and path not in known
        and path not in KAFKAS_OWN
        and not path.startswith(f"{PROPERTIES}.")
    ]
    assert wrong == []


@pages
def test_every_variable_exists(page: Path) -> None:
    """CHRONOS_* variables set something."""
    others = {"CHRONOS_SERVER", "CHRONOS_CONFIG", "CHRONOS_ARCHIVE"}
    for name in set(re.findall(r"CHRONOS_[A-Z_]+", page.read_text())) - others:
        path = name.removeprefix("CHRONOS_").strip("_").lower().replace("__", ".")
        assert path == "" or path in keys() or path.startswith(f"{PROPERTIES}."), name


def configurations(page: Path) -> Iterator[str]:
    """The yaml blocks that are settings of Chronos."""
    for block in blocks(page, "yaml"):
        if set(yaml.safe_load(block)) & {path for path in keys() if "." not in path}:
            yield block


@pages
def test_every_configuration_is_accepted(page: Path, tmp_path: Path) -> None:
    """Settings shown can be copied."""
    for at, block in enumerate(configurations(page)):
        file = tmp_path / f"{at}.yaml"
        file.write_text(block)
        load(str(file), {}, [])


def served() -> set[str]:
    """The paths of the HTTP interface, with `{}` for what varies."""
    return {re.sub(r"\{\w+\}", "{}", route.path) for route in table(None)}


@pages
def test_every_path_is_served(page: Path) -> None:
    """HTTP paths exist."""
    text = page.read_text()
    named = set(re.findall(r"(?<![\w.])(/v1/[\w{}/.-]*|/livez|/readyz|/metrics|/openapi\.json)(?!\.md)", text))
    wrong = [
        path
        for path in named
        if not any(re.fullmatch(re.escape(known).replace(r"\{\}", "[^/]+"), path.rstrip("/.")) for known in served())
    ]
    assert wrong == []


@pages
def test_every_metric_exists(page: Path) -> None:
    """Metrics are called as /metrics calls them."""
    known = {series.name for series in METRICS} | {name for name, _, _ in NODE_METRICS}
    for name in set(re.findall(r"\bchronos_[a-z_]+", page.read_text())):
        assert re.sub(r"_(bucket|sum|count)$", "", name) in known, name


# ------------------------------------------------------------------------------------- Headers and reasons


def header_constants() -> set[str]:
    """Every header of `core.message`."""
    named = {value for value in vars(message).values() if isinstance(value, str) and value.startswith("chronos-")}
    return (named - {message.PREFIX}) | message.LATER


def test_every_header_is_described_and_no_other() -> None:
    """docs/reference/headers.md has a row with a description for each header there is."""
    page = DOCS / "reference/headers.md"
    described = {
        cells[0].strip("`")
        for heading in ("## Control headers", "### Not supported yet", "## Receipt headers")
        for cells in rows(page, heading)
        if cells[0].startswith("`chronos-") and len(cells[-1].strip("` ")) > 5
    }
    assert described == header_constants()


@pages
def test_no_header_is_made_up(page: Path) -> None:
    """Whatever is called `chronos-...` in backticks is a header, or the name of something else we ship."""
    others = {"chronos-data", "chronos-", "chronos-..."}
    for text in inline(page):
        name = re.match(r"chronos-[a-z-]*", text)
        if name is not None and not text.startswith("chronos-data"):
            assert name[0] in header_constants() | others, text


def test_every_reason_is_described_and_no_other() -> None:
    """docs/reference/headers.md has a row with a description for each reason there is."""
    found = {
        cells[0].strip("`"): cells
        for heading in ("### Rejected", "### Dead-lettered or retried")
        for cells in rows(DOCS / "reference/headers.md", heading)
        if cells[0].startswith("`") and cells[0] != "`chronos-reason`"
    }
    assert set(found) == {reason.label for reason in Reason}
    for cells in found.values():
        assert len(cells) == 3
        assert all(len(cell) > 5 for cell in cells[1:])


# ------------------------------------------------------------------------------------------ Errors and texts


def test_every_error_is_described_with_its_exit_code() -> None:
    """docs/reference/errors.md has every class of chronos/errors.py, and the code it ends with."""
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.ChronosError)
    }
    page = DOCS / "reference/errors.md"
    told = {cells[0].strip("`"): cells[1] for cells in rows(page, "## Errors") if cells[0].startswith("`")}
    roots = {"ChronosError", "Retry"}
    assert set(told) == set(classes) - roots
    for name, code in told.items():
        assert int(code) == classes[name].exit_code, name
    assert {row[0] for row in rows(page, "## Exit codes")} == {"code", "0", "1", "2", "3", "4", "5"}


@cache
def texts() -> tuple[str, ...]:
    """Every text in the code, each f-string with a mark where something is filled in."""
    found = []
    for file in sorted((ROOT / "chronos").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values))  # type: ignore[misc]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(found)


@cache
def explained() -> dict[str, re.Pattern[str]]:
    """The texts that docs/operations.md quotes in its first columns; an ellipsis stands for what differs."""
    tables = rows(DOCS / "operations.md", "## Texts and remedies")
    return {
        quoted: re.compile(".*?".join(re.escape(part) for part in quoted.split("…")), re.DOTALL)
        for cells in tables
        for quoted in re.findall(r"`([^`]+)`", cells[0])
    }


def test_every_text_explained_to_operators_is_one_that_chronos_writes() -> None:
    """What docs/operations.md quotes stands in the code; `Corruption` is RocksDB's own word."""
    unknown = [quoted for quoted, pattern in explained().items() if not any(pattern.search(text) for text in texts())]
    assert unknown in ([], ["Corruption"])


def raised() -> Iterator[tuple[str, str]]:
    """`(file, text)` of every error the code raises that stops or pauses a node, but for wrong settings."""
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.Stop | errors.Retry) and name != "ConfigurationError"
    }
    for file in sorted((ROOT / "chronos").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds and node.args:
                text = node.args[0]
                if isinstance(text, ast.JoinedStr):
                    yield (
                        file.name,
                        "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in text.values),
                    )
                elif isinstance(text, ast.Constant):
                    yield file.name, str(text.value)


def test_every_text_that_stops_or_pauses_a_node_is_explained_to_operators() -> None:
    """Whoever writes a new one adds a row to a table of docs/operations.md that quotes a piece of it."""
    silent = [
        (file, text)
        for file, text in raised()
        if len(text.replace("\0", "")) > 8 and not any(pattern.search(text) for pattern in explained().values())
    ]
    assert silent == []


# -------------------------------------------------------------------------------------------- Formats, tests


@pytest.mark.parametrize(
    "value", [Entry, IdState, State, Identity, Progress, Decision], ids=lambda value: value.__name__
)
def test_every_field_of_a_format_is_written_down_in_its_order(value: type) -> None:
    """docs/reference/formats.md follows the structs."""
    text = (DOCS / "reference/formats.md").read_text()
    fields: tuple[str, ...] = value.__struct_fields__  # type: ignore[attr-defined]
    assert re.search(r"\b[^|]*?\b".join(fields) if value is not Progress else r"\b.*?\b".join(fields), text, re.DOTALL)


def test_every_test_that_conformance_names_exists() -> None:
    """docs/conformance.md claims nothing that is not there."""
    there = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "conformance.md").read_text()))
    assert named
    assert [name for name in named if f"def {name}(" not in there] == []
