"""A rolling upgrade under load: three nodes of an earlier commit become nodes of this checkout, one
after the other, forth and back; and the same on the embedded log with one node.

The nodes of a version run its own checkout, with the libraries of this one. The load is that of a
drill, which measures the lateness, with all features at random beside it
(`tests.integration.mixture`), and groups of records whose ends depend on each other (`CASES`). At
the end every message has exactly the ends that it may have, and all replicas are alike."""

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Message
from rich.console import Console
from rich.table import Table

from tests.chaos.drill import Drill, Result
from tests.chaos.faults import epochs_complaints
from tests.chaos.fleet import Fleet, Node
from tests.chaos.kills import check_outcome
from tests.harness.broker import Broker, Clients
from tests.harness.service import Service, ServiceError, of_source
from tests.harness.zookeeper import Ensemble
from tests.integration.flow import SHARDS, HttpFlow, now_ms, read_committed, text_headers
from tests.integration.mixture import MixedFlow

ROOT = Path(__file__).parents[2]

BEFORE = "8e80a9b79de149145a3f6747a640d7025a92d9c9"
"""The commit that stands for the version before: the last one on the main line that knows rules 2.
The merge after it brought rules 3, and no later one changed rules or formats; set it anew when
either changes."""

RATE = 300
"""Messages of the drill per second: versions and not throughput are tested."""

PLAIN, MIXED = 50, 5
"""Messages of each kind in one portion of the other load."""

PORTION_S = 1.0
"""One portion in so many seconds."""

CANCELLED = 0.2
"""Share of the plain messages for which a cancel is sent."""

PAST_MS, AHEAD_MS = 1_000, 12_000
"""Messages are due from `PAST_MS` before to `AHEAD_MS` after they are written."""

SECONDS_MAX = 900.0
"""The load ends after this time in any case."""

STAYS_S = 3.0
"""How long it is watched that the rules number does not rise: the controller plans four times a
second."""

LATE_S = 30.0
"""Most by which a message may be late in any step. The lateness of each step is reported; it
depends on what else the machine does, and the other campaigns judge it."""

LONG_AGO_MS = 40 * 86_400_000
"""Longer ago than `limits.max_past`: refused by rules 3, delivered at once by older ones."""

EMBEDDED = 1_000
"""Messages of each portion on the embedded log."""

PROGRESS = Console(stderr=True, highlight=False)

Case = list[tuple[dict[str, object], str]]
"""The records of one id, in order: the headers without their prefix, and the end: `delivered`, a
reason, or nothing. A number is a time so many ms from now."""

CASES: dict[str, Case] = {
    "rescheduled": [
        ({"deliver-at": 6_000}, "delivered"),
        ({"deliver-at": 10_000, "action": "reschedule"}, ""),
    ],
    "fired": [({"deliver-at": 600_000}, "delivered"), ({"action": "fire-now"}, "")],
    "conflict": [({"deliver-at": 6_000}, "delivered"), ({"deliver-at": 7_000}, "conflict")],
    "ignored": [
        ({"deliver-at": 6_000}, "delivered"),
        ({"deliver-at": 7_000, "on-conflict": "ignore"}, ""),
    ],
    "replaced": [
        ({"deliver-at": 6_000}, ""),
        ({"deliver-at": 7_000, "on-conflict": "replace"}, "delivered"),
    ],
    "refused": [({"delay": "soon"}, "bad-value")],
    "unknown": [({"deliver-at": 6_000, "action": "replace"}, "unknown")],
    "contradictory": [({"deliver-at": 5_000, "expire-at": 4_000}, "contradictory-headers")],
}


class UpgradeFlow(MixedFlow):
    """The mixed flow, with the groups of CASES."""

    def __init__(self, kafka: Clients, seed: int) -> None:
        super().__init__(kafka, seed, misplaced=0.2)
        self.cases = f"{self.prefix}.cases"
        self.expected: Counter[tuple[str, str]] = Counter()
        """Value and end of each record of a group."""
        self._groups = 0
        self.lock = threading.Lock()
        """Held while something is written: two threads do."""
        kafka.create_topic(
            self.cases, partitions=2, config={"message.timestamp.type": "LogAppendTime"}
        )

    def write_case(self, name: str, case: Case) -> None:
        """Write the records of one group; each value has its number."""
        self._groups += 1
        for number, (asked, end) in enumerate(case):
            headers: dict[str, str | bytes | None] = {
                f"chronos-{header}": str(now_ms() + value if isinstance(value, int) else value)
                for header, value in asked.items()
            }
            if asked.get("action") not in ("reschedule", "fire-now"):
                headers["chronos-target-topic"] = self.cases
            value = f"case {name}-{self._groups}-{number}"
            if end:
                self.expected[value, end] += 1
            self._produce(f"case-{self._groups}", value, headers, -1, lambda _: None)
        self.poll()

    def write_portion(self) -> None:
        """Write one portion of everything, and some cancels."""
        self.poll()
        written = self.write(PLAIN, now_ms() - PAST_MS, now_ms() + AHEAD_MS)
        self.write_mixed(MIXED, now_ms() - PAST_MS, now_ms() + AHEAD_MS)
        self.cancel(message for message in written if self.random.random() < CANCELLED)
        for name, case in CASES.items():
            self.write_case(name, case)

    def is_own(self, message: Message) -> bool:
        """The records of groups are none of the plain ones."""
        return not (message.value() or b"").startswith(b"case ") and super().is_own(message)

    def complaints(self) -> list[str]:
        """Also the records of groups that have another end than theirs."""
        found: Counter[tuple[str, str]] = Counter()
        early = []
        for topic in (self.cases, f"{self.prefix}.rejected", f"{self.prefix}.dead_letter"):
            for message in read_committed(self._kafka.bootstrap, topic):
                value = (message.value() or b"").decode(errors="replace")
                headers = text_headers(message)
                if not value.startswith("case "):
                    continue
                found[value, headers.get("chronos-reason", "delivered")] += 1
                if topic == self.cases and message.timestamp()[1] < int(headers["chronos-due-at"]):
                    early.append(value)
        return [
            *super().complaints(),
            *(f"{value}: {end}, which is unexpected" for value, end in found - self.expected),
            *(f"{value}: not {end}" for value, end in self.expected - found),
            *(f"{value}: early" for value in early),
        ]

    def count_delivered(self) -> int:
        """All deliveries of the flow."""
        cases = sum(1 for _ in read_committed(self._kafka.bootstrap, self.cases))
        return self.ends()[0] + cases


class Writer(threading.Thread):
    """Writes portions until it is ended."""

    def __init__(self, flow: UpgradeFlow) -> None:
        super().__init__(daemon=True)
        self._flow = flow
        self._ended = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        try:
            while not self._ended.wait(PORTION_S) and time.monotonic() < deadline:
                with self._flow.lock:
                    self._flow.write_portion()
            self._flow.flush()
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        """Wait until all is written."""
        self._ended.set()
        self.join()
        assert self.error is None, f"the load failed: {self.error}"


def checkout(commit: str) -> Path:
    """Return the folder with a commit of this repository. Raises LookupError if there is none."""
    found = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if found.returncode != 0:
        raise LookupError(f"{commit} is no commit of this repository (of a shallow clone?)")
    name = found.stdout.strip()
    folder = ROOT / ".cache" / f"source-{name[:12]}"
    if not (folder / "chronos").exists():
        _git("worktree", "prune")
        made = _git("worktree", "add", "--force", "--detach", str(folder), name)
        if made.returncode != 0:
            raise LookupError(f"{commit} cannot be checked out: {made.stderr.strip()}")
    return folder


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


def ask(source: Path, node: Service, *arguments: str) -> tuple[int, str]:
    """Run the command line of a checkout; return its exit code and its output."""
    done = subprocess.run(
        [sys.executable, "-m", "chronos", *arguments],
        cwd=source,
        env={**os.environ, **of_source(source), "CHRONOS_SERVER": node.url, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout


def command_complaints(source: Path, node: Service, id: str, target: str) -> list[str]:
    """What a command line gets wrong with a node of another version."""
    found = []
    for arguments, expected in (
        (("status",), "n3"),
        (("send", "--to", target, "--in", "1h", "--id", id, "--wait", "asked"), id),
        (("get", id), "pending"),
        (("list", "--target", target, "-n", "1000"), id),
        (("list", "--id-prefix", id), id),
        (("reschedule", id, "--in", "2h"), ""),
        (("cancel", id), "cancelled"),
        (("get", id), "cancelled"),
        (("rates",), ""),
        (("dead-letters", "list", "-n", "1"), ""),
    ):
        code, output = ask(source, node, *arguments)
        if code != 0 or expected not in output:
            said = output.strip()[-400:]
            found.append(f"chronos {' '.join(arguments)}: exit code {code}: {said}")
    return found


def crossing_complaints(one: Service, other: Service, target: str) -> list[str]:
    """What goes wrong if one node takes messages in, of all shards, and another one changes
    them."""
    found = []
    for number in range(2 * SHARDS):
        id = f"crossed-{one.port}-{number}"
        body = {"id": id, "target": {"topic": target}, "value": "x", "delay": "1h"}
        one.post("/v1/messages", body)
        other.wait_until(
            lambda id=id: other.ask("GET", f"/v1/messages/{id}")[0] == 200,  # type: ignore[misc]
            "know a message that another node took in",
        )
        for node in (one, other):
            node.wait_until(
                lambda id=id, node=node: (
                    len(  # type: ignore[misc]
                        node.get("/v1/messages", id_prefix=id)["messages"]
                    )
                    == 1
                ),
                "list a message that another node took in",
            )
        status, answer = other.ask("DELETE", f"/v1/messages/{id}")
        if (status, answer.get("result")) != (200, "cancelled"):
            found.append(f"cancel of {id}: {status} {answer}")
    return found


class Upgrade:
    """The nodes of two versions, and what is done with them. Every step is a window of the
    drill."""

    def __init__(self, fleet: Fleet, flow: UpgradeFlow, drill: Drill, old: Path, new: Path) -> None:
        self.fleet, self.flow, self.drill = fleet, flow, drill
        self.old, self.new = old, new
        self.old_rules = self.rules()
        self.new_rules = 0
        self.versions: list[str] = []
        """Of the nodes at the end of each window."""
        self.complaints: list[str] = []

    def rules(self, node: Node | None = None) -> int:
        """The rules number in use."""
        return int((node or self.fleet.any()).get("/v1/nodes")["rules"])

    def step(self, title: str, act: Callable[[], None]) -> None:
        """Do something in a window."""
        self.drill.fault(title, act)
        shown = ["new" if node.source == self.new else "old" for node in self.fleet.nodes.values()]
        self.versions.append(f"{' '.join(shown)}, rules {self.rules()}")
        PROGRESS.print(f"{title}: {self.versions[-1]}", markup=False)

    def switch(self, name: str, source: Path, *, kill: bool = False) -> None:
        """Stop a node and start it as another version on the same data."""
        node = self.fleet.nodes[name]
        began_ms = now_ms()
        if kill:
            node.kill()
            self.fleet.wait_led(without=name)
            self.flow.held_back.append((began_ms, now_ms()))
        else:
            assert (code := node.stop()) == 0, f"{name} ended with {code}\n{node.tail()}"
        self.start(name, source)

    def start(self, name: str, source: Path) -> None:
        """Start a node as this version, and wait until the cluster is whole."""
        node = self.fleet.nodes[name]
        node.source = source
        node.start()
        self.fleet.wait_placed()
        self.fleet.wait_led()

    def spread(self, *names: str) -> None:
        """Give these nodes the shards in turns, which are handed over from one version to the
        other."""
        for shard in range(SHARDS):
            self.fleet.transfer(shard, names[shard % len(names)])
        self.fleet.wait_led()

    def assert_rules_stay(self) -> None:
        """Watch that no node uses newer rules."""
        deadline = time.monotonic() + STAYS_S
        while time.monotonic() < deadline:
            for node in self.fleet.running.values():
                assert (found := self.rules(node)) == self.old_rules, f"rules {found} are in use"
            time.sleep(0.2)

    def refuse(self, name: str) -> None:
        """Stop a node and start it as the old version: it must refuse; then start the new one
        again."""
        node = self.fleet.nodes[name]
        assert node.stop() == 0
        node.source = self.old
        assert_refused(node, self.new_rules)
        self.start(name, self.new)

    def raised(self) -> None:
        """Wait until every shard has a master that decides by the new rules."""
        self.fleet.any().wait_until(
            lambda: all(self.rules(node) == self.new_rules for node in self.fleet.nodes.values()),
            "raise the rules number",
        )
        self.fleet.any().wait_until(
            lambda: len(self.adopted()) == SHARDS, "decide by the new rules on every shard"
        )

    def adopted(self) -> set[int]:
        """The shards whose masters decide by the new rules."""
        return {
            event["shard"]
            for node in self.fleet.nodes.values()
            for event in node.events("rules adopted")
            if event["now"] == self.new_rules
        }

    def commands(self, old: str, new: str) -> None:
        """Both command lines, each against a node of the other version."""
        nodes = self.fleet.nodes
        for title, source, name in (
            ("new command line and old node", self.new, old),
            ("old command line and new node", self.old, new),
        ):
            wrong = command_complaints(source, nodes[name], f"asked-{name}", self.flow.cases)
            self.complaints += [f"{title}: {each}" for each in wrong]
        self.complaints += crossing_complaints(nodes[old], nodes[new], self.flow.cases)
        self.complaints += crossing_complaints(nodes[new], nodes[old], self.flow.cases)

    def long_ago(self, end: str) -> None:
        """Write messages due long ago, whose end depends on the rules, and wait until they are
        decided."""
        with self.flow.lock:
            for _ in range(2 * SHARDS):
                self.flow.write_case("long-ago", [({"deliver-at": -LONG_AGO_MS}, end)])
            self.flow.flush()
            written = dict(self.flow.watermarks.offsets)
        node = self.fleet.any()
        node.wait_until(
            lambda: all(
                shard["pull_offset"] >= written.get(shard["shard"], 0) for shard in node.shards()
            ),
            "decide what was written",
        )

    def run(self) -> None:
        """Do all steps."""
        self.step("old version", lambda: time.sleep(3.0))
        self.step("n1 new", lambda: self.switch("n1", self.new))
        self.new_rules = max(
            each["rules"] for each in self.fleet.nodes["n1"].get("/v1/nodes")["nodes"]
        )
        self.step("shards to n1 and n2", lambda: self.spread("n1", "n2"))
        self.step("both command lines", lambda: self.commands("n2", "n1"))
        self.step("n2 new", lambda: self.switch("n2", self.new))
        self.step("shards to all nodes", lambda: self.spread("n1", "n2", "n3"))
        self.step("rules stay", self.assert_rules_stay)
        self.step("n2 old again", lambda: self.switch("n2", self.old))
        self.step("shards to n1 and n2", lambda: self.spread("n1", "n2"))
        self.step("n1 old again", lambda: self.switch("n1", self.old))
        self.step("shards to all nodes", lambda: self.spread("n1", "n2", "n3"))
        self.step("n1 new", lambda: self.switch("n1", self.new))
        self.step("shards to all nodes", lambda: self.spread("n1", "n2", "n3"))
        self.step("n2 killed, new", lambda: self.switch("n2", self.new, kill=True))
        self.step("shards to all nodes", lambda: self.spread("n1", "n2", "n3"))
        self.step("n1 killed, new", lambda: self.switch("n1", self.new, kill=True))
        self.step("both command lines", lambda: self.commands("n3", "n2"))
        self.long_ago("delivered")
        self.flow.repair()
        last = self.fleet.nodes["n3"]

        def stop_last() -> None:
            assert last.stop() == 0
            self.assert_rules_stay()

        self.step("n3 stopped, rules stay", stop_last)
        self.step("n3 new", lambda: self.start("n3", self.new))
        if self.new_rules > self.old_rules:
            self.step("rules raised", self.raised)
            self.long_ago("past" if self.old_rules < 3 else "delivered")
            self.step("n2 old again: refused", lambda: self.refuse("n2"))
        self.step("shards to all nodes", lambda: self.spread("n1", "n2", "n3"))


def assert_refused(node: Service, rules: int) -> None:
    """Start a node that must end because it does not know the rules of its log."""
    before = len(node.log_path.read_text())
    node.launch()
    code = node.wait_exit(timeout_s=60.0)
    said = node.log_path.read_text()[before:]
    assert code == 1, f"an old version ended with {code}\n{node.tail()}"
    assert f"rules {rules}" in said, f"the reason is not named\n{node.tail()}"
    assert "AssertionError" not in said, f"an old version failed\n{node.tail()}"


def upgrade_cluster(
    directory: Path, old: Path, new: Path, *, seed: int, coordinator: str
) -> tuple[Upgrade, Result, list[str]]:
    """Upgrade three nodes on a Kafka broker."""
    with ExitStack() as stack:
        kafka = stack.enter_context(Broker())
        zookeeper = stack.enter_context(Ensemble()) if coordinator == "zookeeper" else None
        flow = UpgradeFlow(kafka, seed)
        fleet = stack.enter_context(
            Fleet(
                directory,
                bootstrap=kafka.bootstrap,
                zookeeper=None if zookeeper is None else zookeeper.hosts,
                raft=coordinator == "raft",
                shards=SHARDS,
                settings=flow.settings(),
                source=old,
            )
        )
        fleet.start()
        last = fleet.nodes["n3"]
        flow.prime(last)
        drill = stack.enter_context(
            Drill(
                kafka,
                flow.delay,
                f"{flow.prefix}.drill",
                rate=RATE,
                seconds_max=SECONDS_MAX,
            )
        )
        upgrade = Upgrade(fleet, flow, drill, old, new)
        writer = Writer(flow)
        writer.start()
        with flow.replaying(last):
            try:
                upgrade.run()
            finally:
                writer.end()
        PROGRESS.print("waiting until everything is settled")
        result = drill.result()
        flow.replay_all(last)
        complaints = [
            *upgrade.complaints,
            *flow.complaints(),
            *fleet.digest_complaints(),
            *epochs_complaints(kafka, f"{flow.prefix}.progress", SHARDS),
        ]
        counted = sum(shard["totals"]["delivered"] for shard in last.shards())
        if counted != (found := flow.count_delivered() + result.messages):
            complaints.append(f"{counted} deliveries counted, {found} found")
        for node in fleet.nodes.values():
            lines = node.log_path.read_text().splitlines()
            errors = [line for line in lines if "Traceback" in line]
            complaints += [f"{node.log_path.name}: {line[:300]}" for line in errors[:3]]
        return upgrade, result, complaints


def upgrade_partial(directory: Path, old: Path, new: Path, *, seed: int) -> list[str]:
    """Ask nodes of two versions for shards that only other nodes hold, and so forward requests."""
    with Broker() as kafka:
        flow = UpgradeFlow(kafka, seed)
        settings = {**flow.settings(), "coordinator.replication": 2}
        with Fleet(
            directory,
            bootstrap=kafka.bootstrap,
            zookeeper=None,
            shards=SHARDS,
            settings=settings,
            source=old,
        ) as fleet:
            fleet.start()
            older, newer = fleet.nodes["n2"], fleet.nodes["n1"]
            assert newer.stop() == 0
            newer.source = new
            newer.start()
            fleet.wait_placed()
            fleet.wait_led()
            found = []
            for title, source, node in (
                ("new command line and old node", new, older),
                ("old command line and new node", old, newer),
                ("new command line and new node", new, newer),
            ):
                id = f"asked-{title.replace(' ', '-')}"
                wrong = command_complaints(source, node, id, flow.cases)
                found += [f"two copies, {title}: {each}" for each in wrong]
            found += crossing_complaints(older, newer, flow.cases)
            found += crossing_complaints(newer, older, flow.cases)
            return found


def upgrade_embedded(directory: Path, old: Path, new: Path, *, seed: int) -> None:
    """Upgrade a node on the embedded log, which cannot go back."""
    dice = random.Random(seed + 1)
    with Service(directory / "embedded", source=old) as service:
        service.start()
        flow = HttpFlow(service, seed)

        def portion() -> None:
            written = flow.write(EMBEDDED, now_ms() - PAST_MS, now_ms() + AHEAD_MS)
            flow.cancel(message for message in written if dice.random() < CANCELLED / 4)

        rules = service.get("/v1/nodes")["rules"]
        portion()
        assert service.stop() == 0
        service.source = new
        service.start()
        newer = service.get("/v1/nodes")["rules"]
        portion()
        service.kill()
        service.start()
        flow.wait_settled(service)
        if newer > rules:
            # Killed, it has records to replay: the old version finds the newer rules in the log.
            service.kill()
            service.source = old
            assert_refused(service, newer)
            service.source = new
            service.start()
            flow.wait_settled(service)
        check_outcome(flow, service)


def upgrade(commit: str, seed: int, coordinator: str) -> int:
    """Run the campaign; the exit code is 1 if anything is wrong. LookupError without the commit."""
    old = checkout(commit)
    PROGRESS.print(f"from {old.name.removeprefix('source-')} to this checkout: about 5 minutes")
    out = Console()
    complaints: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "partial").mkdir()
        try:
            upgrade_embedded(Path(folder), old, ROOT, seed=seed)
            PROGRESS.print("embedded log: ok")
        except (AssertionError, ServiceError) as error:
            complaints.append(f"embedded log: {_first_line(error)}")
        try:
            complaints += upgrade_partial(Path(folder, "partial"), old, ROOT, seed=seed)
            PROGRESS.print("two copies of each shard: done")
        except (AssertionError, ServiceError) as error:
            complaints.append(f"two copies of each shard: {_first_line(error)}")
        try:
            found, result, wrong = upgrade_cluster(
                Path(folder), old, ROOT, seed=seed, coordinator=coordinator
            )
        except (AssertionError, ServiceError, OSError) as error:
            complaints.append(f"cluster: {_first_line(error)}")
        else:
            complaints += wrong
            complaints += show(out, found, result)
    for complaint in complaints:
        out.print(complaint, highlight=False, markup=False)
    out.print("FAILED" if complaints else "ok")
    return 1 if complaints else 0


def _first_line(error: BaseException) -> str:
    """The text of an error; the log that follows it is printed as progress."""
    PROGRESS.print(str(error), markup=False, soft_wrap=True)
    return (str(error) or type(error).__name__).splitlines()[0]


def show(out: Console, found: Upgrade, result: Result) -> list[str]:
    """Print the table; return what was missed."""
    table = Table("step", "n1 n2 n3 afterwards", "late max")
    missed = []
    for window, versions in zip(result.windows, found.versions, strict=True):
        late_s = window.worst_ms / 1_000
        table.add_row(window.name, versions, f"{late_s:.2f} s")
        if late_s > LATE_S:
            missed.append(f"{window.name}: late by {late_s:.2f} s")
    out.print(table)
    flow = found.flow
    out.print(
        f"{result.messages:,} messages of the drill: {result.lost} lost, {result.duplicated} "
        f"duplicated, {result.early} early; {len(flow.sent):,} plain and {len(flow.mixed):,} mixed "
        f"messages, {sum(flow.expected.values()):,} records of groups",
        highlight=False,
    )
    if result.lost + result.duplicated + result.early:
        missed.append("messages of the drill were lost, duplicated or early")
    return missed
