"""The documentation is true to the code: links, files, tests, settings, paths, headers, metrics and
quoted texts exist.

`tests/test_docs_examples.py` checks the examples.
"""

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import chain, pairwise
from pathlib import Path

import click
import pytest
import typer

from chronos import errors
from chronos.admin.archive.status import ARCHIVE_METRICS
from chronos.admin.cluster.metrics import BROKER_METRICS, COUNTS, METRICS, NODE_METRICS
from chronos.admin.http.routes import table
from chronos.cli.app import app
from chronos.config.catalogue import PROPERTIES, keys
from chronos.config.reading import OF_THE_COMMAND_LINE
from chronos.core import message
from chronos.core.message import Entry, Reason
from chronos.core.shard.codec import (
    HeldRecord,
    Identity,
    IdState,
    LaneState,
    QueueState,
    State,
    Totals,
)
from chronos.core.shard.progress import Decision, Hold, LaneCursor, Progress, Replan, Written
from tests.harness.pages import (
    DOCS,
    ROOT,
    inline,
    on_every_page,
    page_name,
    parsed,
    prose,
    rows,
)

README_LINES_MAX = 150

KAFKAS_OWN = {"retention.ms", "retention.bytes"}
"""Settings of Kafka's topics that look like ours."""


# -------------------------------------------------------------------------------- Links and lengths


def test_the_readme_is_short() -> None:
    """It has two commands at the top and fits on a few screens."""
    assert "./scripts/run" in (ROOT / "README.md").read_text()[:500]
    assert "./scripts/test" in (ROOT / "README.md").read_text()[:500]
    assert len((ROOT / "README.md").read_text().splitlines()) < README_LINES_MAX


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = [
        re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "") for heading in headings
    ]
    return frozenset(
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain
    )


@on_every_page
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
    """Every page of docs/ is linked from docs/index.md."""
    links = re.findall(r"\]\(([^)\s]+)\)", prose(DOCS / "index.md"))
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in links}
    assert {page.resolve() for page in DOCS.rglob("*.md")} - linked == {
        (DOCS / "index.md").resolve()
    }


# ----------------------------------------------------------------------------------------- Commands


@on_every_page
def test_every_script_exists(page: Path) -> None:
    """`./scripts/...` is there, and can be run."""
    for name in re.findall(r"\./(scripts/[\w/-]+)", page.read_text()):
        assert (ROOT / name).stat().st_mode & 0o100, name


SCRIPTS = [
    path.relative_to(ROOT)
    for path in sorted((ROOT / "scripts").rglob("*"))
    if path.is_file() and path.stat().st_mode & 0o100
]


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
@pytest.mark.slow
def test_every_script_helps_without_setting_anything_up(script: Path, tmp_path: Path) -> None:
    """In a checkout without .venv, and whatever the other arguments are."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    summary = (ROOT / script).read_text().splitlines()[1].removeprefix("# ")
    for arguments in (["--help"], ["-h"], ["--fix", "--help"]):
        done = subprocess.run(
            [tmp_path / script, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(summary + "\n")
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]


@cache
def verbs() -> dict[str, click.Command]:
    """The verbs of the command line."""
    command = typer.main.get_command(app)
    return dict(command.commands)  # type: ignore[attr-defined]


@on_every_page
def test_every_verb_exists(page: Path) -> None:
    """Each `chronos verb` in backticks is a command."""
    for text in inline(page):
        said = re.match(r"chronos ([a-z][a-z-]*)", text)
        assert said is None or said[1] in verbs(), text


# --------------------------------------------------------------------- Configuration, HTTP, metrics


@on_every_page
def test_every_setting_exists(page: Path) -> None:
    """Keys in backticks and behind --set are keys."""
    known = keys()
    sections = {path for path, key in known.items() if key.kind == "section" and "." not in path}
    named = [re.match(r"([a-z_]+(?:\.[a-z_]+)+)(?![\w(.*-])", text) for text in inline(page)]
    found = {match[1] for match in named if match} | set(
        re.findall(r"--set ([a-z_.]+)=", page.read_text())
    )
    wrong = [
        path
        for path in found
        if path.split(".")[0] in sections
        and path not in known
        and path not in KAFKAS_OWN
        and not path.startswith(f"{PROPERTIES}.")
    ]
    assert wrong == []


@on_every_page
def test_every_variable_exists(page: Path) -> None:
    """CHRONOS_* variables set something."""
    for name in set(re.findall(r"CHRONOS_[A-Z_]+", page.read_text())) - OF_THE_COMMAND_LINE:
        path = name.removeprefix("CHRONOS_").strip("_").lower().replace("__", ".")
        assert path == "" or path in keys() or path.startswith(f"{PROPERTIES}."), name


def served() -> set[str]:
    """The paths of the HTTP interface, with `{}` for what varies."""
    return {re.sub(r"\{\w+\}", "{}", route.path) for route in table(None)}


@on_every_page
def test_every_path_is_served(page: Path) -> None:
    """HTTP paths exist."""
    text = page.read_text()
    named = set(
        re.findall(
            r"(?<![\w.])(/v1/[\w{}/.-]*|/livez|/readyz|/metrics|/openapi\.json)(?!\.md)", text
        )
    )
    wrong = [
        path
        for path in named
        if not any(
            re.fullmatch(re.escape(known).replace(r"\{\}", "[^/]+"), path.rstrip("/."))
            for known in served()
        )
    ]
    assert wrong == []


def test_the_short_references_have_every_call_with_its_role_and_every_verb() -> None:
    """The tables of docs/reference/http.md and cli.md, against the routes and the commands."""
    calls = {
        cells[0].strip("`"): cells[1].strip("`")
        for cells in rows(DOCS / "reference/http.md", "## Calls")
        if cells[0] != "call"
    }
    assert calls == {f"{route.method} {route.path}": route.role for route in table(None)}
    named = {
        cells[0].strip("`").removeprefix("chronos ")
        for cells in rows(DOCS / "reference/cli.md", "## Verbs")[1:]
    }
    assert named == {*runnable("", verbs())}
    assert {"send", "dead-letters list", "registry config set", "archive"} <= named


def runnable(above: str, commands: dict[str, click.Command]) -> Iterator[str]:
    """The full names of the commands that do something without a verb behind them."""
    for name, command in commands.items():
        below: dict[str, click.Command] = getattr(command, "commands", {})
        if not below or getattr(command, "invoke_without_command", False):
            yield above + name
        yield from runnable(f"{above}{name} ", below)


@on_every_page
def test_every_metric_exists(page: Path) -> None:
    """Metrics have the names of /metrics."""
    known = {found.name for found in METRICS} | {found.name for found in COUNTS}
    known |= {name for name, _, _ in (*NODE_METRICS, *BROKER_METRICS, *ARCHIVE_METRICS)}
    # The package that a generator of clients writes.
    for name in set(re.findall(r"\bchronos_[a-z_]+", page.read_text())) - {"chronos_generated"}:
        assert re.sub(r"_(bucket|sum|count)$", "", name) in known, name


# ------------------------------------------------------------------------------ Headers and reasons


def header_constants() -> set[str]:
    """Every header of `core.message`."""
    named = {
        value
        for value in vars(message).values()
        if isinstance(value, str) and value.startswith("chronos-")
    }
    return named - {message.PREFIX}


def test_every_header_is_described_and_no_other() -> None:
    """docs/reference/headers.md has a row with a description for each header there is."""
    page = DOCS / "reference/headers.md"
    described = {
        cells[0].strip("`")
        for heading in ("## Control headers", "## Receipt headers")
        for cells in rows(page, heading)
        if cells[0].startswith("`chronos-") and len(cells[-1].strip("` ")) > 5
    }
    assert described == header_constants()


@on_every_page
def test_no_header_is_made_up(page: Path) -> None:
    """Each `chronos-...` in backticks is a header, or the data directory."""
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


# --------------------------------------------------------------------------------- Errors and texts


def test_every_error_is_described_with_its_exit_code() -> None:
    """docs/reference/errors.md has every class of chronos/errors.py, and the code it ends with."""
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.ChronosError)
    }
    page = DOCS / "reference/errors.md"
    described = {
        cells[0].strip("`"): cells[1]
        for cells in rows(page, "## Errors")
        if cells[0].startswith("`")
    }
    roots = {"ChronosError", "Retry"}
    assert set(described) == set(classes) - roots
    for name, code in described.items():
        assert int(code) == classes[name].exit_code, name
    assert {row[0] for row in rows(page, "## Exit codes")} == {
        "code",
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "6",
    }


@cache
def texts() -> tuple[str, ...]:
    """Every text in the code, each f-string with a mark where something is filled in."""
    found = []
    for file in sorted((ROOT / "chronos").rglob("*.py")):
        for node in ast.walk(parsed(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(
                        part.value if isinstance(part, ast.Constant) else "\0"  # type: ignore[misc]
                        for part in node.values
                    )
                )  # type: ignore[misc]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(found)


@cache
def written() -> tuple[re.Pattern[str], ...]:
    """The texts of the code as patterns of what is shown."""
    return tuple(
        re.compile(".*".join(map(re.escape, text.split("\0"))))
        for text in texts()
        if len(text.replace("\0", "")) > 8
    )


@on_every_page
@pytest.mark.slow
def test_every_error_that_is_shown_is_one_that_chronos_writes(page: Path) -> None:
    """`error: ...` in the output of a command."""
    for line in re.findall(r"^error: (.+)$", page.read_text(), re.MULTILINE):
        assert any(pattern.search(line) for pattern in written()), line


RUNBOOKS = [DOCS / "operations.md", *sorted((DOCS / "operations").glob("*.md"))]
"""The index of operations, the runbooks and the texts."""

TEXTS = DOCS / "operations/texts.md"
"""The page with every text, its meaning and its remedy."""

QUOTING = {"text", "log line", "log line or text"}
"""The first cell of the head of a table whose first column quotes texts."""


def quotes(page: Path) -> list[str]:
    """What the tables of texts of a page quote in their first columns."""
    lines = prose(page).splitlines()
    found = []
    head = ""
    for above, line in pairwise(["", *lines]):
        if line.startswith("|") and not line.startswith("|---"):
            first = re.split(r" \|(?= )", line.strip("|"))[0].strip()
            if not above.startswith("|"):
                head = first
            elif head in QUOTING:
                found += re.findall(r"`([^`]+)`", first)
    return found


@cache
def explained() -> dict[str, re.Pattern[str]]:
    """The texts that docs/operations/texts.md quotes in its first columns; an ellipsis stands for
    what differs."""
    return {
        quoted: re.compile(".*?".join(re.escape(part) for part in quoted.split("…")), re.DOTALL)
        for quoted in quotes(TEXTS)
    }


@pytest.mark.slow
def test_every_text_explained_to_operators_is_one_that_chronos_writes() -> None:
    """What docs/operations/texts.md quotes stands in the code; `Corruption` is RocksDB's own
    word."""

    def is_written(quoted: str, pattern: re.Pattern[str]) -> bool:
        longest = max(quoted.split("…"), key=len)
        return any(pattern.search(text) for text in texts() if longest in text)

    assert len(explained()) > 300
    unknown = [quoted for quoted, pattern in explained().items() if not is_written(quoted, pattern)]
    assert unknown in ([], ["Corruption"])


@pytest.mark.parametrize("page", RUNBOOKS, ids=page_name)
def test_every_text_of_a_runbook_is_one_of_the_texts(page: Path) -> None:
    """A runbook quotes a text as docs/operations/texts.md does, letter by letter, so a search finds
    both; that page has no table of another kind but the one of its sections."""
    assert [quoted for quoted in quotes(page) if quoted not in explained()] == []
    if page == TEXTS:
        heads = re.findall(r"^\| ([^|]+) \|.*\n\|---", page.read_text(), re.MULTILINE)
        assert set(heads) - QUOTING == {"section"}


def test_every_runbook_is_found_from_the_table_of_symptoms() -> None:
    """docs/operations.md has a row for each; the first line of the texts says to search them."""
    symptoms = " ".join(cells[-1] for cells in rows(DOCS / "operations.md", "## Symptoms"))
    linked = set(re.findall(r"\]\(operations/([\w-]+\.md)[#)]", symptoms))
    assert linked == {page.name for page in RUNBOOKS[1:]}
    assert TEXTS.read_text().startswith(
        "# Texts\n\nThis page is to be searched for a text, not read"
    )


def raised() -> Iterator[tuple[str, str]]:
    """`(file, text)` of every error the code raises that stops or pauses a node, but for wrong
    settings."""
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type)
        and issubclass(kind, errors.Stop | errors.Retry)
        and name != "ConfigurationError"
    }
    for file in sorted((ROOT / "chronos").rglob("*.py")):
        for node in ast.walk(parsed(file.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in kinds
                and node.args
            ):
                text = node.args[0]
                if isinstance(text, ast.JoinedStr):
                    yield (
                        file.name,
                        "".join(
                            str(part.value) if isinstance(part, ast.Constant) else "\0"
                            for part in text.values
                        ),
                    )
                elif isinstance(text, ast.Constant):
                    yield file.name, str(text.value)


@pytest.mark.slow
def test_every_text_that_stops_or_pauses_a_node_is_explained_to_operators() -> None:
    """A new text needs a row in a table of docs/operations/texts.md that quotes a piece of it."""
    silent = [
        (file, text)
        for file, text in raised()
        if len(text.replace("\0", "")) > 8
        and not any(pattern.search(text) for pattern in explained().values())
    ]
    assert silent == []


# ----------------------------------------------------------------------------------- Formats, tests


@pytest.mark.parametrize(
    "value",
    [
        Entry,
        IdState,
        State,
        LaneState,
        HeldRecord,
        QueueState,
        Identity,
        Progress,
        Decision,
        Replan,
        LaneCursor,
        Hold,
        Written,
    ],
    ids=lambda value: value.__name__,
)
def test_every_field_of_a_format_is_written_down_in_its_order(value: type) -> None:
    """docs/reference/formats.md follows the structs."""
    text = (DOCS / "reference/formats.md").read_text()
    fields: tuple[str, ...] = value.__struct_fields__  # type: ignore[attr-defined]
    assert re.search(
        r"\b[^|]*?\b".join(fields) if value is not Progress else r"\b.*?\b".join(fields),
        text,
        re.DOTALL,
    )


# -------------------------------------------------------------------------- Files, functions, tests


def repository_files() -> list[Path]:
    """The Python files of the package and of the tests."""
    return sorted([*(ROOT / "chronos").rglob("*.py"), *(ROOT / "tests").rglob("*.py")])


@cache
def defined_in(name: str) -> dict[str, ast.AST]:
    """`core/shard/shard.py:Shard.apply` and the like: every class, function, method and named value
    of one file of the package."""
    found: dict[str, ast.AST] = {}
    for node in parsed((ROOT / "chronos" / name).read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[f"{name}:{node.name}"] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[f"{name}:{node.targets[0].id}"] = node
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    found[f"{name}:{node.name}.{inner.name}"] = inner
    return found


def definition(name: str) -> ast.AST:
    """What has this name; KeyError if nothing has."""
    return defined_in(name.partition(":")[0])[name]


def defined() -> Iterator[str]:
    """What is defined in all files of the package."""
    for file in sorted((ROOT / "chronos").rglob("*.py")):
        yield from defined_in(file.relative_to(ROOT / "chronos").as_posix())


@cache
def all_tests() -> frozenset[str]:
    """The names of all tests."""
    return frozenset(
        re.findall(r"def (test_\w+)\(", "".join(file.read_text() for file in repository_files()))
    )


@on_every_page
def test_every_test_that_is_named_exists(page: Path) -> None:
    """A page claims nothing that is not there."""
    named = {
        name
        for text in inline(page)
        for name in re.findall(r"\btest_\w+(?!\w*\.py)\b", text)
        if ".py" not in text
    }
    assert named <= all_tests()


RULES = {"HA": 48, "CH": 10, "NS": 22, "LF": 19, "RH": 14, "DL": 36}
"""The families of rules that `conformance.md` tells of, and how many rules each has."""


def test_conformance_has_a_row_for_every_rule() -> None:
    """In the first column, alone or in a range as in `HA-01 to HA-11`."""
    rows = re.findall(
        r"^\| ([^|]+) \|", (DOCS / "contributing/conformance.md").read_text(), re.MULTILINE
    )
    ranges = [re.findall(r"([A-Z]{2})-(\d+)(?: to [A-Z]{2}-(\d+))?", row) for row in rows]
    found = {
        (family, number)
        for family, first, last in chain.from_iterable(ranges)
        for number in range(int(first), int(last or first) + 1)
    }
    assert found == {
        (family, number) for family, last in RULES.items() for number in range(1, last + 1)
    }


@on_every_page
def test_every_file_that_is_named_exists(page: Path) -> None:
    """Files and directories of this repository, by their paths in backticks."""
    for text in inline(page):
        if re.fullmatch(r"(chronos|tests|docs|scripts|config|examples|locks)/[\w./-]*", text):
            assert (ROOT / text).exists(), text


def test_the_architecture_is_four_pages() -> None:
    """A list of all files is the tree itself; what each one is, its docstring says."""
    assert len((DOCS / "architecture.md").read_text().split()) < 2_200


def test_what_the_index_of_behaviours_names_exists() -> None:
    """Each name of the index is a class, a function or a method of one of the files beside it."""
    section = (DOCS / "architecture.md").read_text().split("## Where is ...?")[1]
    rows_found = re.findall(r"^\| (.*) \| (`.*`) \| (`.*`) \|$", section, re.M)
    assert len(rows_found) >= 25
    for behaviour, files, names in rows_found:
        known: set[str] = set()
        for file in files.replace("`", "").split(", "):
            for node in parsed((ROOT / file).read_text()).body:
                if isinstance(node, ast.ClassDef):
                    methods = [
                        each
                        for each in node.body
                        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                    ]
                    known |= {node.name, *(f"{node.name}.{each.name}" for each in methods)}
                elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    known.add(node.name)
        assert known >= set(names.replace("`", "").split(", ")), behaviour


def test_every_file_in_the_drawing_of_the_architecture_exists() -> None:
    """The drawing leaves out `chronos/`."""
    drawing = (DOCS / "architecture.md").read_text().split("```")[1]
    named = re.findall(r"[a-z_]+(?:/[a-z_]+)+\.py", drawing)
    assert len(named) > 10
    assert [name for name in named if not (ROOT / "chronos" / name).exists()] == []


def test_the_architecture_has_a_row_for_every_package() -> None:
    """The table of packages is complete, and allows what `tests/test_architecture.py` allows."""
    from tests.packages import MAY_IMPORT

    table = {
        cells[0].strip("`"): cells[2]
        for cells in rows(DOCS / "architecture.md", "## The packages")[1:]
    }
    parts = {
        path.removeprefix("chronos/").removesuffix(".py"): allowed
        for path, allowed in table.items()
    }
    assert set(parts) == set(MAY_IMPORT) - {"__main__", "chronos"}
    for part, allowed in parts.items():
        if part != "cli":
            assert set(re.findall(r"`(\w+)`", allowed)) == MAY_IMPORT[part] - {"chronos"}, part


def laws() -> list[list[str]]:
    """The rows of the second table of docs/contributing/laws.md: law, assertions, named errors, the
    simulator's checks."""
    return rows(DOCS / "contributing/laws.md", "## Where they are checked")[1:]


def test_every_law_is_checked_in_the_service_and_in_the_simulator() -> None:
    """The functions that docs/contributing/laws.md names exist, and they assert, raise, or find a
    broken law."""
    checker = parsed((ROOT / "tests/sim/checker.py").read_text())
    checks = {
        f"{node.name}.{inner.name}": inner
        for node in checker.body
        if isinstance(node, ast.ClassDef)
        for inner in node.body
        if isinstance(inner, ast.FunctionDef)
    }
    assert [cells[0] for cells in laws()] == [str(number) for number in range(1, 10)]
    for number, asserting, raising, simulated in laws():
        asserts, raises = (re.findall(r"`([^`]+)`", cell) for cell in (asserting, raising))
        assert asserts or raises, f"law {number} is checked nowhere"
        for name in asserts:
            assert any(isinstance(node, ast.Assert) for node in ast.walk(definition(name))), name
        for name in raises:
            assert any(isinstance(node, ast.Raise) for node in ast.walk(definition(name))), name
        checked = re.findall(r"`([^`]+)`", simulated)
        assert checked, f"law {number} is not checked in the simulator"
        assert all(name in checks for name in checked), simulated


def test_every_counter_is_explained() -> None:
    """docs/how-to/monitor.md has a row for each of the totals of a shard."""
    explained = {
        cells[0].strip("`")
        for cells in rows(DOCS / "how-to/monitor.md", "## The counters")
        if len(cells) == 2
    }
    assert set(Totals.__struct_fields__) <= explained


@pytest.mark.slow
def test_the_glossary_names_classes_and_functions_that_exist() -> None:
    """Names in brackets are those of the code; every term has one row."""
    text = (DOCS / "reference/glossary.md").read_text()
    names = {
        part for name in defined() for part in (name.rsplit(":", 1)[1], name.rsplit(".", 1)[1])
    }
    named = {
        name
        for group in re.findall(r"\(((?:`\w+`(?:, )?)+)\)", text)
        for name in re.findall(r"`(\w+)`", group)
    }
    assert len(named) > 10
    assert named <= names
    terms = [
        term
        for cell in re.findall(r"^\| (\*\*.+?) \|", text, re.MULTILINE)
        for term in re.findall(r"\*\*(.+?)\*\*( \(.+?\))?", cell)
    ]
    assert len(terms) == len(set(terms))


def test_no_file_refers_to_a_document_that_is_not_there() -> None:
    """Comments and docstrings name pages of docs/ by their paths, and nothing that is not in the
    repository."""
    listed = subprocess.run(
        [
            "git",
            "-C",
            str(ROOT),
            "ls-files",
            "*.py",
            "*.md",
            "*.yaml",
            "*.toml",
            "scripts",
            "Dockerfile",
        ],
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()
    wrong = []
    for name in listed:
        file = ROOT / name
        if file.suffix in (".png", ".jar") or not file.is_file():
            continue
        text = file.read_text(errors="replace")
        wrong += [
            f"{name}: {path}"
            for path in re.findall(r"\bdocs/[\w/-]+\.md\b", text)
            if not (ROOT / path).exists()
        ]
        wrong += [
            f"{name}: {word}"
            for word in re.findall(r"\bDESI" + r"GN\b(?: section \d+|\.md)?", text)
        ]
    assert wrong == []
