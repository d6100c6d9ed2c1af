"""`scripts/sim`: run many seeds, or one with its trace. The last line of a failure is the command that replays it."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.sim import elections, participant_cluster
from tests.sim.simulation import simulate
from tests.sim.world import Finding


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/sim", description="Deterministic simulation of a whole cluster.")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds (default 1000)")
    parser.add_argument("--minutes", type=float, help="run for this long instead")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="run one seed and print its trace")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return replay(arguments.seed)
    return search(arguments.first, arguments.seeds, arguments.minutes)


def replay(seed: int) -> int:
    """Run one seed and print its trace."""
    lines: list[str] = []
    try:
        result = simulate(seed, lines=lines)
    except Finding as finding:
        print("\n".join(lines))
        if finding.__cause__ is not None:
            traceback.print_exception(finding.__cause__)
        print(f"seed {seed}: {finding}")
        return finding.exit_code
    print("\n".join(lines))
    print(f"seed {seed}: nothing found; {result.sent} records, {result.commits} commits, trace {result.digest}")
    return 0


def search(first: int, seeds: int, minutes: float | None) -> int:
    """Run consecutive seeds until one fails or all are done."""
    began_s = time.monotonic()
    done = sent = commits = deliveries = events = 0
    while (time.monotonic() - began_s < minutes * 60) if minutes is not None else done < seeds:
        seed = first + done
        try:
            result = simulate(seed)
        except Finding as finding:
            print(f"seed {seed}: {finding}")
            print(f"replay it with: ./scripts/sim --seed {seed}")
            return finding.exit_code
        done += 1
        sent += result.sent
        commits += result.commits
        deliveries += result.deliveries
        events += result.events
        if done % 500 == 0:
            print(f"{done} seeds in {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    took_s = time.monotonic() - began_s
    print(
        f"{done} seeds, {sent} records, {commits} commits, {deliveries} deliveries, {events} events in {took_s:.1f} s"
    )
    if done:
        # The rule of three: with no failure in n trials, the rate is below 3/n with 95 % confidence.
        print(f"nothing found: with 95 % confidence fewer than {3 / done:.2g} of all seeds fail (3/n)")
    return 0


if __name__ == "__main__":
    others = {"elections": elections.main, "participants": participant_cluster.main}
    if sys.argv[1:2] and sys.argv[1] in others:
        sys.exit(others[sys.argv[1]](sys.argv[2:]))
    sys.exit(main())
