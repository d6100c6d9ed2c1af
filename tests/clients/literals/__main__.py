"""`python -m tests.clients.literals`: writes `tests/unit/literals.tsv` anew."""

import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "unit" / "literals.tsv"


def run(*command: str) -> str:
    """Return what a command prints, in the zone UTC."""
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"TZ": "UTC"}
    ).stdout


def of_python() -> str:
    """Return the lines of Python's datetime."""
    lines = []
    for microseconds in (1_796_071_380_000_000, 1_796_071_385_000_000, 1_796_071_385_500_001):
        ms = -(-microseconds // 1_000)
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
        for zone in (UTC, timezone(timedelta(hours=5, minutes=30))):
            there = at.astimezone(zone)
            lines += [
                f"time\t{ms}\tdatetime.isoformat, {zone}\t{there.isoformat()}",
                f"time\t{ms}\tstr(datetime), {zone}\t{there}",
            ]
        minute = microseconds // 60_000_000 * 60_000
        lines.append(f"time\t{minute}\tisoformat(minutes)\t{at.isoformat(timespec='minutes')}")
        lines.append(
            f"refused\t0\tdatetime.isoformat, naive\t{at.replace(tzinfo=None).isoformat()}"
        )
        lines.append(f"refused\t0\tdatetime.ctime\t{at.ctime()}")
    for length in (timedelta(seconds=90.5), timedelta(days=1), timedelta(seconds=-1)):
        lines.append(f"refused\t0\tstr(timedelta)\t{length}")
    return "\n".join(lines)


def main() -> int:
    """Run the five programs and write the table."""
    with tempfile.TemporaryDirectory() as folder:
        rust = str(Path(folder) / "literals")
        run("rustc", "-o", rust, str(HERE / "literals.rs"))
        written = {
            f"Java {run('java', '--version').split()[1]}": run("java", str(HERE / "Literals.java")),
            f"Go {run('go', 'env', 'GOVERSION').strip()[2:]}": run(
                "go", "run", str(HERE / "literals.go")
            ),
            f"Node {run('node', '--version').strip()[1:]}": run("node", str(HERE / "literals.mjs")),
            f"Rust {run('rustc', '--version').split()[1]}": run(rust),
            f"Python {platform.python_version()}": of_python(),
        }
    rows = [f"{library}\t{line}" for library, text in written.items() for line in text.splitlines()]
    TABLE.write_text("\n".join(["library\tkind\tms\texpression\ttext", *dict.fromkeys(rows), ""]))
    print(f"{len(rows)} texts in {TABLE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
