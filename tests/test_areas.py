"""The table of packages and their tests (tests/harness/areas.py) is complete."""

from __future__ import annotations

from tests.harness.areas import AREAS, ROOT, to_run


def test_every_package_has_its_tests_and_every_test_exists() -> None:
    packages = {
        f"chronos/{each.name}"
        for each in (ROOT / "chronos").iterdir()
        if (each / "__init__.py").exists()
    }
    assert packages == {area for area in AREAS if area.startswith("chronos/")}
    named = {test for tests in AREAS.values() for test in tests}
    assert [path for path in {*AREAS, *named} if not (ROOT / path).exists()] == []


def test_a_change_asks_for_the_tests_of_the_nearest_folder_once() -> None:
    assert to_run(["README.md", "tests/conftest.py"]) == []
    assert to_run(["chronos/spark/audit/job.py", "tests/spark/witness.py"]) == ["tests/spark"]
    assert to_run(["docs/index.md", "tests/node/test_cli.py"]) == [
        "tests/node",
        "tests/test_docs.py",
        "tests/test_docs_examples.py",
        "tests/test_site.py",
    ]
    assert to_run(["chronos/core/cron.py", "chronos/errors.py"]) == ["tests"]
