"""The tests of what was changed, which `./scripts/test` runs in full.

    python -m tests.harness.areas             prints the folders of tests, one a line
    python -m tests.harness.areas --passed    keeps the commit that `./scripts/test full` has passed

The changes are those since that commit, or else since the branch left its upstream, or else those
that are not committed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PASSED = ROOT / ".cache" / "full-passed"
"""Holds the commit that `./scripts/test full` passed last in this checkout."""

AREAS = {
    "chronos": ["tests"],
    "chronos/adapters": ["tests/contract", "tests/integration"],
    "chronos/admin": ["tests/node", "tests/browser"],
    "chronos/cli": ["tests/node"],
    "chronos/client": ["tests/node"],
    "chronos/config": ["tests/node"],
    "chronos/core": ["tests/unit", "tests/sim"],
    "chronos/node": ["tests/node", "tests/integration"],
    "chronos/spark": ["tests/spark"],
    "chronos/workers": ["tests/unit", "tests/sim", "tests/integration"],
    "config": ["tests/integration/test_chart.py", "tests/integration/test_promtool.py"],
    "docs": ["tests/test_docs.py", "tests/test_docs_examples.py", "tests/test_site.py"],
    "examples": ["tests/node/test_examples.py"],
    "locks": ["tests"],
    "tests/harness": ["tests/contract"],
}
"""Folder of the change -> its tests; the longest that fits counts. A changed folder of tests stands
for itself, and other files for no test: `fast` and `smoke` are enough."""


def to_run(changed: list[str]) -> list[str]:
    """The folders and files of tests to run for changed files, none inside another."""
    found = {test for path in changed for test in _of(Path(path))}
    return sorted(one for one in found if not any(str(each) in found for each in Path(one).parents))


def _of(path: Path) -> list[str]:
    area = next((AREAS[str(each)] for each in path.parents if str(each) in AREAS), None)
    if area is not None:
        return area
    folder = path.parent
    return [str(folder)] if folder.parts[:1] == ("tests",) and _has_tests(folder) else []


def _has_tests(folder: Path) -> bool:
    return len(folder.parts) > 1 and any((ROOT / folder).glob("test_*.py"))


def changes() -> tuple[str, list[str]]:
    """Since when, and the files that were changed."""
    for since, commit in (("the last full run", _passed()), ("the upstream branch", _fork_point())):
        if commit is not None:
            return f"{since} ({commit[:8]})", _changed_since(commit)
    return "the last commit", _changed_since("HEAD")


def _passed() -> str | None:
    try:
        commit = PASSED.read_text().strip()
    except FileNotFoundError:
        return None
    # A commit that was rewritten may be gone.
    return commit if _git("cat-file", "-e", f"{commit}^{{commit}}") is not None else None


def _fork_point() -> str | None:
    return _git("merge-base", "HEAD", "@{upstream}")


def _changed_since(commit: str) -> list[str]:
    changed = _git("diff", "--name-only", commit) or ""
    new = _git("ls-files", "--others", "--exclude-standard") or ""
    return sorted({*changed.splitlines(), *new.splitlines()})


def _git(*arguments: str) -> str | None:
    """What Git prints; None if it fails, as outside a repository."""
    try:
        ran = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None


def main() -> None:
    """Print the tests, or keep the commit."""
    if sys.argv[1:] == ["--passed"]:
        commit = _git("rev-parse", "HEAD")
        if commit is not None and not _changed_since("HEAD"):
            PASSED.write_text(commit + "\n")
        return
    since, changed = changes()
    tests = to_run(changed)
    print(
        f"changed since {since}: {len(changed)} files; in full: {' '.join(tests) or 'nothing'}",
        file=sys.stderr,
    )
    print(*tests, sep="\n", end="\n" if tests else "")


if __name__ == "__main__":
    main()
