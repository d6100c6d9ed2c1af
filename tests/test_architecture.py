"""The rules that no single file can keep: who imports whom, what core may touch, what must be in no
file.

Each rule is a function from a tree to a list of complaints. It is run on this project, where the
list must be empty, and on small trees with the fault planted, where it must not be."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
import yaml

from chronos.cli import EXTRAS
from chronos.config import load
from chronos.errors import ConfigurationError
from tests.harness.pages import parsed
from tests.harness.table import table
from tests.packages import MAY_IMPORT

ROOT = Path(__file__).resolve().parent.parent


# Third-party modules that belong to one part only.
AT_HOME_IN = {
    "confluent_kafka": "adapters",
    "cryptography": "node",
    "delta": "spark",
    "fsspec": "adapters",
    "jwt": "admin",
    "kazoo": "adapters",
    "opentelemetry": "adapters",
    "pyspark": "spark",
    "rocksdict": "adapters",
}

# Core is pure: it computes on values, with libraries that do the same.
CORE_LIBRARIES = {"cronsim", "msgspec", "xxhash"}
# Clocks, dice, threads, files, sockets and whatever else asks or tells the world outside.
# fmt: off
NOT_IN_CORE = {
    "_thread", "asyncio", "atexit", "concurrent", "contextvars", "ctypes", "fcntl", "fileinput", (
        "getpass"
    ),
    "glob", "http", "importlib", "io", "locale", "logging", "mmap", "multiprocessing", "os", (
        "pathlib"
    ),
    "platform", "queue", "random", "sched", "secrets", "select", "selectors", "shelve", "shutil", (
        "signal"
    ),
    "socket", "socketserver", "sqlite3", "ssl", "subprocess", "sys", "syslog", "tempfile", (
        "threading"
    ),
    "time", "timeit", "tracemalloc", "urllib", "uuid", "warnings", "weakref",
}
# fmt: on
NOT_CALLED_IN_CORE = {"open", "print", "input", "breakpoint", "exec", "eval"}
CLOCKS = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")}

# Modules whose distribution has another name.
DISTRIBUTIONS = {
    "delta": "delta_spark",
    "yaml": "pyyaml",
    "pydantic_core": "pydantic",
    "jwt": "pyjwt",
    "opentelemetry": "opentelemetry_sdk",
}


# ------------------------------------------------------------------------------------------ Imports


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and full name of all that is imported, wherever: also in functions and under
    `TYPE_CHECKING`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".") if is_package else module.split(".")[:-1]
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in {"__import__", "import_module"}:
            # A name that is computed cannot be judged, so it is not allowed at all.
            name = node.args[0] if node.args else None
            literal = name.value if isinstance(name, ast.Constant) else "<computed>"
            yield node.lineno, str(literal)


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def part_of(name: str, package: Path) -> str:
    """The part of the package that a full name such as `chronos.core.wheel.Wheel` belongs to."""
    first = (name + ".").split(".")[1]
    is_there = first and ((package / first).is_dir() or (package / f"{first}.py").is_file())
    return first if is_there or first in MAY_IMPORT else "chronos"


def import_complaints(package: Path) -> list[str]:
    """Imports against the direction, third-party modules away from home, and anything impure in
    core."""
    complaints = []
    for path in sorted(package.rglob("*.py")):
        steps = path.relative_to(package.parent).with_suffix("").parts
        is_package = steps[-1] == "__init__"
        module = ".".join(steps[:-1] if is_package else steps)
        part = "__main__" if module == "chronos.__main__" else part_of(module, package)
        tree = parsed(path.read_text())
        found = []
        if part not in MAY_IMPORT:
            found.append((1, f"{part} has no place in MAY_IMPORT: decide what it may import"))
        for line, name in imports(tree, module, is_package):
            found += ((line, reason) for reason in _import_faults(part, name, package))
        if part == "core":
            found += _impure(tree)
        complaints += [
            f"{path.relative_to(package.parent)}:{line}: {reason}" for line, reason in found
        ]
    return complaints


def _import_faults(part: str, name: str, package: Path) -> Iterator[str]:
    top = name.split(".")[0]
    if top == package.name:
        other = part_of(name, package)
        if other != part and other not in MAY_IMPORT.get(part, set()):
            yield f"{part} must not import {other}"
    elif top == "<computed>":
        yield "an import whose name is computed"
    elif AT_HOME_IN.get(top, part) != part:
        yield f"{part} must not import {top}: only {AT_HOME_IN[top]} may"
    elif part == "core" and (
        top in NOT_IN_CORE or top not in sys.stdlib_module_names | CORE_LIBRARIES
    ):
        yield f"core is pure and must not import {top}"


def _impure(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in NOT_CALLED_IN_CORE:
            yield node.lineno, f"core is pure and must not call {function.id}()"
        if isinstance(function, ast.Attribute):
            owner = function.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if (name, function.attr) in CLOCKS:
                yield node.lineno, f"core has no clock and must not call {name}.{function.attr}()"


def test_no_test_imports_another_one():
    """What tests share stands beside them, in tests/harness or in a module that is no test."""
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line in re.findall(
            r"^ *(?:from|import) tests\.(?:\w+\.)*test_.*", path.read_text(), re.MULTILINE
        )
        if f".{path.stem} " not in line  # a program of its own, which a test runs
    ]
    assert found == []


@pytest.mark.slow
@pytest.mark.smoke
def test_imports_go_one_way_and_core_is_pure():
    """Every import of the package is one that MAY_IMPORT allows; docs/architecture.md gives the
    reasons."""
    package = ROOT / "chronos"
    assert len(list(package.rglob("*.py"))) > 10
    assert import_complaints(package) == []


# The heart: a newcomer reads it in a day. Of the cluster it knows the values of roles and reports
# only.
HEART = ("core", "core/shard", "workers/step", "workers/replica")
NOT_IN_HEART = ("chronos.core.cluster", "chronos.workers.cluster")
KNOWN_TO_HEART = "chronos.core.cluster.roles."


@pytest.mark.slow
def test_the_heart_knows_no_cluster_and_no_interface():
    """A shard is told its role: nothing in it decides about a cluster. Archive and interfaces are
    excluded by MAY_IMPORT."""
    files = [path for folder in HEART for path in sorted((ROOT / "chronos" / folder).glob("*.py"))]
    for path in files:
        for line, name in imports(parsed(path.read_text()), "chronos", is_package=False):
            assert not name.startswith(NOT_IN_HEART) or name.startswith(KNOWN_TO_HEART), (
                f"{path}:{line}: {name}"
            )


@table(
    ("path", "source", "complaint"),
    [
        ("core/wheel.py", "from chronos.ports import Store", "core must not import ports"),
        ("core/wheel.py", "from ..ports import Store", "core must not import ports"),
        ("core/wheel.py", "from chronos import ports", "core must not import ports"),
        ("core/deep/wheel.py", "from ...ports import Store", "core must not import ports"),
        ("core/__init__.py", "from ..ports import Store", "core must not import ports"),
        ("core/wheel.py", "def f():\n    import chronos.node", "core must not import node"),
        (
            "core/wheel.py",
            "import typing\nif typing.TYPE_CHECKING:\n    import chronos.node",
            ("import node"),
        ),
        ("core/wheel.py", "import time", "must not import time"),
        ("core/wheel.py", "from os import path", "must not import os"),
        ("core/wheel.py", "import structlog", "must not import structlog"),
        ("core/wheel.py", "import datetime\nx = datetime.datetime.now()", "no clock"),
        ("core/wheel.py", "x = open('file')", "must not call open()"),
        ("core/wheel.py", "x = __import__('time')", "must not import time"),
        ("errors.py", "from chronos.core import wheel", "errors must not import core"),
        ("ports.py", "from chronos.workers import pull", "ports must not import workers"),
        ("ports.py", "from chronos.config import Config", "ports must not import config"),
        (
            "workers/pull.py",
            "from chronos.adapters.rocksdb.store import Rocks",
            ("workers must not import adapters"),
        ),
        ("workers/pull.py", "from chronos.config import Config", "workers must not import config"),
        ("workers/pull.py", "import confluent_kafka", "only adapters may"),
        ("adapters/rocks.py", "import chronos.workers.pull", "adapters must not import workers"),
        ("node.py", "from chronos.admin import app", "node must not import admin"),
        ("node.py", "from rocksdict import Rdict", "only adapters may"),
        ("admin/app.py", "from chronos.cli import main", "admin must not import cli"),
        ("spark/audit.py", "from chronos.node import Node", "spark must not import node"),
        ("cli.py", "import importlib\nimportlib.import_module('kazoo')", "only adapters may"),
        ("cli.py", "import importlib\nimportlib.import_module('kaz' + 'oo')", "computed"),
        ("gadgets.py", "", "gadgets has no place"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path, path, source, complaint):
    """Each rule fails on a tree that breaks it, and only there."""
    package = Path(mkdtemp(dir=tmp_path)) / "chronos"
    for name in (
        "core/wheel",
        "core/__init__",
        "workers/pull",
        "adapters/rocks",
        "admin/app",
        "spark/audit",
    ):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / f"{name}.py").write_text("")
    for name in ("errors", "ports", "node", "cli", "config", "client", "__init__"):
        (package / f"{name}.py").write_text("")
    assert import_complaints(package) == []

    (package / path).parent.mkdir(exist_ok=True)
    (package / path).write_text(source)
    found = import_complaints(package)
    assert len(found) == 1
    assert complaint in found[0]
    assert found[0].startswith(f"chronos/{path}:")


LINES_MAX = 900

TABLES = {"admin/http/routes.py", "admin/http/schemas.py"}
"""Modules that only list: they may be longer."""


def long_files(root: Path) -> list[str]:
    """Modules of the package that a reader cannot take in at once."""
    files = (
        (path.relative_to(root).as_posix(), len(path.read_text().splitlines()))
        for path in root.rglob("*.py")
    )
    return [
        f"{name} has {lines} lines"
        for name, lines in sorted(files)
        if lines > LINES_MAX and name not in TABLES
    ]


def test_no_module_is_longer_than_one_subject(tmp_path):
    """A module is cut where its subject ends; a longer one than this holds several."""
    assert long_files(ROOT / "chronos") == []
    (tmp_path / "long.py").write_text("x = 1\n" * (LINES_MAX + 1))
    assert long_files(tmp_path) == [f"long.py has {LINES_MAX + 1} lines"]


SHOWN_UNDER_ITS_NAME = {
    "DeadLetter",
    "HeldBack",
    "History",
    "Lateness",
    "Minute",
    "Outcome",
    "Rejection",
    "Shard",
    "Target",
    "Targets",
    "Topic",
}
"""What the HTTP interface shows of these has their name."""


def name_complaints(package: Path) -> list[str]:
    """Top-level classes with the name of another one; those of the clients have the names that
    users know from the HTTP interface."""
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        steps = path.relative_to(package).parts
        if steps[0] == "client":
            continue
        for node in parsed(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                is_shown = steps[-1] == "schemas.py" and node.name in SHOWN_UNDER_ITS_NAME
                if not is_shown:
                    found.setdefault(node.name, []).append("/".join(steps))
    return [f"{name}: {', '.join(files)}" for name, files in found.items() if len(files) > 1]


@pytest.mark.slow
def test_no_two_classes_have_one_name(tmp_path):
    """One thing, one name; a private name is that of one file."""
    assert name_complaints(ROOT / "chronos") == []
    for name in ("a.py", "b.py", "schemas.py"):
        (tmp_path / name).write_text("class Same: ...\nclass _Own: ...\nclass Shard: ...\n")
    assert name_complaints(tmp_path) == ["Same: a.py, b.py, schemas.py", "Shard: a.py, b.py"]


@pytest.mark.slow
def test_everything_imported_is_a_declared_dependency():
    """What the package imports is in pyproject.toml, and is not there only because another package
    needs it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    parts = ("server", "zookeeper", "otel", "spark")
    asked = [*project["dependencies"], *(each for part in parts for each in extras[part])]
    declared = {re.split(r"[^\w-]", each)[0].lower().replace("-", "_") for each in asked}
    for path in (ROOT / "chronos").rglob("*.py"):
        for line, name in imports(parsed(path.read_text()), "chronos", is_package=True):
            top = name.split(".")[0]
            known = top == "chronos" or top in sys.stdlib_module_names
            assert known or DISTRIBUTIONS.get(top, top).lower() in declared, (
                f"{path}:{line}: {name}"
            )


def test_a_missing_module_is_named_with_the_extra_that_has_it():
    """`chronos.cli.EXTRAS` and pyproject.toml agree, and the base installation has no module of an
    extra."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    names = {
        extra: {re.split(r"[^\w-]", each)[0].lower() for each in asked}
        for extra, asked in extras.items()
    }
    for module, extra in EXTRAS.items():
        assert DISTRIBUTIONS.get(module, module).replace("_", "-").lower() in names[extra], module
    listed = {DISTRIBUTIONS.get(module, module).replace("_", "-").lower() for module in EXTRAS}
    # The exporter is a module of the same name as the SDK.
    unnamed = {"opentelemetry-exporter-otlp-proto-http"}
    parts = ("server", "zookeeper", "otel", "spark")
    assert set().union(*(names[part] for part in parts)) == listed | unnamed
    asked = {extra: set(requirements) for extra, requirements in extras.items()}
    assert asked["server"] < asked["spark"]


# What the base installation holds: it may import nothing of an extra, and no part that does.
BASE_PARTS = {"chronos", "client", "core", "errors", "__main__"}
SERVER_VERBS = {
    "service": {"checks", "doctor", "processes", "serve", "settings"},
    "spark": {"archive", "audit", "backfill", "erase", "jobs", "restore"},
}
"""The modules of the command line that need an extra, by folder."""


@pytest.mark.slow
def test_the_base_installation_imports_no_package_of_an_extra():
    """`pip install kafka-chronos` alone has the clients and the verbs that ask a service."""
    package = ROOT / "chronos"
    checked = 0
    for path in sorted(package.rglob("*.py")):
        steps = path.relative_to(package.parent).with_suffix("").parts
        part = "__main__" if steps[1:] == ("__main__",) else part_of(".".join(steps), package)
        if part == "cli":
            if path.stem in SERVER_VERBS.get(steps[-2], ()):
                continue
        elif part not in BASE_PARTS:
            continue
        checked += 1
        for line, name in imports(
            parsed(path.read_text()), ".".join(steps), path.stem == "__init__"
        ):
            assert name.split(".")[0] not in EXTRAS, f"{path}:{line}: {name}"
    assert checked > 40


# ----------------------------------------------------------- What must be in no file of the project

# Put together here, so that this file does not hold what it looks for.
FOREIGN = [
    re.compile(pattern.encode())
    for pattern in (
        r"(?<![\w.])/(?:work|root)" + "/",
        "/tmp/" + "lab",
        r"pypi\." + "org",
        r"pythonhosted\." + "org",
        r"repo1?\.maven\." + r"(?:apache\.)?org",
        r"registry\.npm" + "js",
        r"proxy\.go" + "lang",
        r"--(?:extra-)?index" + "-url",
        r"--find" + "-links[= ]",
    )
]


def project_files(root: Path) -> list[Path]:
    """What git keeps or would keep: tracked files, and new ones that are not ignored."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    return [path for name in listed.split("\0") if name and (path := root / name).is_file()]


def foreign_complaints(files: list[Path]) -> list[str]:
    """File, line and text of everything that should be in no file."""
    complaints = []
    for path in files:
        content = path.read_bytes()
        for pattern in FOREIGN:
            for match in pattern.finditer(content):
                line = content.count(b"\n", 0, match.start()) + 1
                complaints.append(f"{path}:{line}: {match[0].decode()}")
    return complaints


def test_no_file_names_a_machine_or_a_registry():
    """A clone works anywhere: no paths of somebody's machine, no addresses of registries."""
    files = project_files(ROOT)
    assert len(files) > 10
    assert foreign_complaints(files) == []


@table(
    "text",
    [
        "cd /work" + "/main",
        "file:///root" + "/x",
        "/tmp" + "/lab/venv",
        "https://pypi" + ".org/simple",
        "https://repo1.maven" + ".org/maven2",
        "https://repo.maven.apache" + ".org/maven2",
        "https://registry.npm" + "js.org/kafkajs",
        "https://proxy.go" + "lang.org",
        "--index" + "-url x",
    ],
)
def test_a_machine_path_or_registry_address_is_found(tmp_path, text):
    """The search finds each kind, with its line, and spares what only looks alike."""
    file = tmp_path / "notes.txt"
    file.write_text("the network/work/balance, maven.apache.org/POM, a grass/root/level thing\n")
    assert foreign_complaints([file]) == []
    file.write_text(f"one\n{text}\n")
    assert [each.split(":")[1] for each in foreign_complaints([file])] == ["2"]


LOCKS = [
    "locks/requirements.txt",
    "locks/requirements-test.txt",
    *sorted(
        path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/clients/python").glob("*.txt")
    ),
]


@pytest.mark.parametrize("name", LOCKS)
def test_locks_pin_everything_with_hashes_and_name_no_address(name):
    """Every line of a lock is a version, its hash or a comment."""
    text = (ROOT / name).read_text()
    assert "://" not in text
    requirements = re.findall(
        r"^(?![#\s]).*(?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)+", text, re.MULTILINE
    )
    assert len(requirements) == len(re.findall(r"^(?![#\s]).", text, re.MULTILINE))
    assert all(re.match(r"[a-z0-9-]+==\S+ \\\n", each) for each in requirements)


def test_the_lock_of_node_has_versions_and_hashes_and_no_address():
    """`npm --omit-lockfile-registry-resolved` writes it so."""
    lock = json.loads((ROOT / "tests/clients/node/package-lock.json").read_text())["packages"]
    project = json.loads((ROOT / "tests/clients/node/package.json").read_text())
    assert {
        f"node_modules/{name}": version for name, version in project["dependencies"].items()
    }.items() <= {name: each["version"] for name, each in lock.items() if name}.items()
    for name, each in lock.items():
        assert not name or (each["integrity"].startswith("sha512-") and "resolved" not in each), (
            name
        )


def test_the_bill_of_materials_is_that_of_the_lock():
    """The same packages in the same versions, in the bill and in the list of licences, each with a
    licence."""

    def named(text: str) -> str:
        return re.sub(r"[-_.]+", "-", text).lower()

    locked = dict(
        re.findall(
            r"^([a-z0-9-]+)==(\S+)", (ROOT / "locks/requirements.txt").read_text(), re.MULTILINE
        )
    )
    bill = json.loads((ROOT / "locks/sbom.json").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == (
        "CycloneDX",
        project["version"],
    )
    assert {named(each["name"]): each["version"] for each in bill["components"]} == locked
    assert all(each.get("licenses") for each in bill["components"])
    listed = re.findall(
        r"^\| ([\w.-]+) \| ([\d.]+) \| (.+?) \| .*\|$",
        (ROOT / "locks/third-party.md").read_text(),
        re.MULTILINE,
    )
    assert {named(name): version for name, version, _ in listed} == locked


@pytest.mark.parametrize("name", ["helm", "kafka", "rocketmq", "zookeeper", "spark"])
def test_jars_are_compared_with_hashes_of_our_own(name, tmp_path):
    """One that was changed, is missing or is new ends the set-up."""
    hashes = (ROOT / f"locks/{name}-jars.sha256").read_text()
    assert re.fullmatch(r"([0-9a-f]{64}  [\w.-]+\.jar\n)+", hashes)
    work = tmp_path / "locks"
    work.mkdir()
    jars = tmp_path / "jars"
    jars.mkdir()
    for jar, content in (("a.jar", "one"), ("b.jar", "two")):
        (jars / jar).write_text(content)

    def run(words: str) -> subprocess.CompletedProcess[str]:
        script = f"source {ROOT}/scripts/lib.sh; ROOT={tmp_path}; {words}"
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=60
        )

    check = f"check_jars {jars} {name}"
    assert run(f"jar_hashes {jars} >{work}/{name}-jars.sha256").returncode == 0
    assert run(check).returncode == 0
    (jars / "a.jar").write_text("other")
    assert f"not those of locks/{name}-jars.sha256" in run(check).stderr
    (jars / "a.jar").write_text("one")
    assert run(check).returncode == 0
    (jars / "c.jar").write_text("")
    assert run(check).returncode == 1
    (jars / "c.jar").unlink()
    (jars / "b.jar").unlink()
    assert run(check).returncode == 1


def test_jars_that_two_scripts_need_at_once_are_fetched_once(tmp_path):
    """The second one takes those of the first, which may run already."""
    folder, fake = tmp_path / "scripts/kafka", tmp_path / "bin"
    for each in (folder, fake):
        each.mkdir(parents=True)
    shutil.copy(ROOT / "scripts/kafka/pom.xml", folder)
    (fake / "mvn").write_text(
        f'#!/bin/sh\necho fetched >>{tmp_path}/fetched\nsleep 0.5\ntouch "${{7#*=}}/a.jar"\n'
    )
    (fake / "mvn").chmod(0o755)
    script = (
        f"source {ROOT}/scripts/lib.sh; ROOT={tmp_path} CACHE={tmp_path}/cache; "
        "need_java() { :; }; fetch_jars Kafka kafka $CACHE/kafka; [[ -f $CACHE/kafka/a.jar ]]"
    )
    both = [
        subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            env={"PATH": f"{fake}:{os.environ['PATH']}"},
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    assert [each.communicate(timeout=60)[1] for each in both].count(b"") == 1
    assert [each.returncode for each in both] == [0, 0]
    assert (tmp_path / "fetched").read_text() == "fetched\n"
    assert sorted(each.name for each in (tmp_path / "cache").iterdir()) == ["kafka", "kafka.lock"]


# ------------------------------------------------------------------------------------------- Docker


@pytest.fixture(scope="module")
def services():
    return compose()["services"]


NODES = ("chronos-1", "chronos-2", "chronos-3")


def compose() -> dict:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_compose_names_its_images_volumes_and_health(services):
    """Every service says what it runs, in which version, how it is checked, and where its data
    is."""
    assert set(services) == {"kafka", *NODES, "prometheus", "grafana"}
    for name, service in services.items():
        # What is built here has a version, and everything else a digest too.
        digest = "" if "build" in service else "@sha256:[0-9a-f]{64}"
        assert re.fullmatch(r"[\w./-]+:[\w.-]+" + digest, service["image"]), name
        assert not service["image"].endswith(":latest"), name
        assert service["healthcheck"]["test"][0] == "CMD", name
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            is_here = source.startswith("./") and (ROOT / source).is_dir()
            assert is_here or source in compose()["volumes"], name
        for needed in service.get("depends_on", {}):
            assert needed in services, name
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), name
        assert name in {"kafka", *NODES} or service["profiles"] == ["observability"]


def test_compose_runs_the_kafka_and_the_chronos_of_this_checkout(services):
    """One version of Kafka in the tests and in the containers; Chronos under its own version."""
    (pinned,) = re.findall(r"<kafka\.version>(.+?)<", (ROOT / "scripts/kafka/pom.xml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert services["kafka"]["image"].partition("@")[0] == f"apache/kafka:{pinned}"
    assert {services[node]["image"] for node in NODES} == {f"chronos:{version}"}


def test_compose_sets_a_configuration_that_chronos_accepts(services):
    """The variables in docker-compose.yml and in the Dockerfile mean what they say."""
    for name in NODES:
        environ = services[name]["environment"]
        assert all(isinstance(value, str) for value in environ.values())
        config = load(None, environ, [])
        assert (config.log.kind, config.coordinator.kind, config.node.id) == (
            "kafka",
            "kafka",
            name,
        )
        bootstrap = str(environ["CHRONOS_LOG__KAFKA__BOOTSTRAP_SERVERS"])
        assert bootstrap in services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
        assert config.admin.tokens == f"/run/secrets/{services[name]['secrets'][0]}"
        assert not config.admin.open
        assert services[name]["ports"][0].endswith(f":{config.admin.port}")
        assert any(
            volume.endswith(f":{config.node.data_dir}") for volume in services[name]["volumes"]
        )
    assert (
        load(str(ROOT / "config" / "cluster" / "chronos.yaml"), {}, []).coordinator.kind == "kafka"
    )

    dockerfile = (ROOT / "Dockerfile").read_text()
    variables = dict(re.findall(r"^(?:ENV|   ) +(CHRONOS_\w+)=(\S+)", dockerfile, re.MULTILINE))
    # What is copied is installed from where it is.
    assert "COPY locks/requirements.txt locks/\n" in dockerfile
    assert "-r locks/requirements.txt\n" in dockerfile
    alone = load(None, variables, [])
    assert alone.node.data_dir == config.node.data_dir
    assert (alone.admin.host, alone.admin.open) == ("127.0.0.1", False)
    with pytest.raises(ConfigurationError, match=r"admin.tokens is not set"):
        load(None, {**variables, "CHRONOS_ADMIN__HOST": "0.0.0.0"}, [])
    assert all(
        "@sha256:" in image for image in re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    )
    assert "\nHEALTHCHECK " in dockerfile
    # By number: Kubernetes cannot tell whether a name is root.
    (user,) = re.findall(r"^USER (\d+):(\d+)$", dockerfile, re.MULTILINE)
    assert "0" not in user
    # The volume belongs to this user.
    for number, command in zip(
        user, ("useradd --system --uid", "groupadd --system --gid"), strict=True
    ):
        assert f"{command} {number} " in dockerfile
    assert f"install -d -o chronos -g chronos -m 700 {config.node.data_dir}\n" in dockerfile
    assert f"VOLUME {config.node.data_dir}\n" in dockerfile
    assert f"EXPOSE {config.admin.port}\n" in dockerfile
