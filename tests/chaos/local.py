"""Three nodes and a Kafka broker on this machine, to try a cluster; `scripts/cluster` runs this."""

import signal
import sys
import tempfile
import threading
from pathlib import Path

from tests.chaos.fleet import Fleet
from tests.harness.broker import Broker

AWAY_S = 20
"""A killed node is started again after this time: late enough to see other nodes take over."""


def main() -> int:
    """Run them until Ctrl-C."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    print("starting Kafka and three nodes ...", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        Broker() as broker,
        Fleet(Path(folder), bootstrap=broker.bootstrap, zookeeper=None) as fleet,
    ):
        fleet.start()
        master = fleet.busiest()
        first = next(node for name, node in fleet.nodes.items() if name != master)
        print(f"\nKafka on {broker.bootstrap}\n")
        for name, node in fleet.nodes.items():
            print(f"  {name}  {node.url}  process {node.pid}  log {node.log_path}")
        print(
            f"""
Try in another terminal:
  export CHRONOS_SERVER={first.url}
  chronos status --watch                the master of each shard, and why
  chronos transfer 0 n2                 a planned hand-over
  kill -9 {fleet.nodes[master].pid}                        other nodes take over the shards of {master} within seconds

Ctrl-C ends all processes.
""",  # noqa: E501
            flush=True,
        )
        gone_s = dict.fromkeys(fleet.nodes, 0)
        while not stop.wait(1.0):
            for name, node in fleet.nodes.items():
                gone_s[name] = 0 if node.running else gone_s[name] + 1
                if gone_s[name] == AWAY_S:
                    print(f"{name} was down for {AWAY_S} s; starting it again", flush=True)
                    node.launch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
