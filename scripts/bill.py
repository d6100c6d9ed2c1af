"""Writes locks/sbom.json and locks/third-party.md from the bill of materials that cyclonedx-py has
made; scripts/lock calls it.

    bill.py MADE SBOM LICENCES

The bill loses every address but that of a project: a clone names no registry.
"""

import json
import sys
from pathlib import Path
from typing import Any

KEPT = ("website", "vcs")
"""Kinds of addresses that are kept."""

HEAD = """# Third-party software

<!-- Made by `./scripts/lock` from locks/sbom.json. -->

The packages that the service consists of, as `locks/requirements.txt` pins them and the image installs them. Some of them contain
further libraries, such as librdkafka (`confluent-kafka`), RocksDB (`rocksdict`) and OpenSSL (`cryptography`); the licences of these are in
the packages.

| package | version | licence | project |
|---|---|---|---|
"""  # noqa: E501


def without_addresses(component: dict[str, Any]) -> dict[str, Any]:
    """The component with the addresses of its project only."""
    kept = [
        {"type": each["type"], "url": each["url"]}
        for each in component.get("externalReferences", [])
        if each["type"] in KEPT and "pypi" not in each["url"]
    ]
    found = {name: value for name, value in component.items() if name != "externalReferences"}
    return {**found, "externalReferences": kept} if kept else found


def licence(component: dict[str, Any]) -> str:
    """The licences that a package declares."""
    found = []
    for each in component.get("licenses", []):
        named = each.get("license", {})
        found.append(
            str(each.get("expression") or named.get("id") or named.get("name")).rpartition(" :: ")[
                2
            ]
        )
    return ", ".join(found) or "not declared"


def main(made: Path, sbom: Path, licences: Path) -> None:
    """Read the first file, and write the others."""
    bill = json.loads(made.read_text())
    bill["components"] = [without_addresses(each) for each in bill["components"]]
    tools = bill["metadata"]["tools"]["components"]
    bill["metadata"]["tools"]["components"] = [without_addresses(each) for each in tools]
    bill["metadata"]["component"] = without_addresses(bill["metadata"]["component"])
    sbom.write_text(json.dumps(bill, indent=2, sort_keys=True) + "\n")
    rows = []
    for each in sorted(bill["components"], key=lambda each: str(each["name"]).lower()):
        project = next((reference["url"] for reference in each.get("externalReferences", [])), "")
        rows.append(f"| {each['name']} | {each['version']} | {licence(each)} | {project} |\n")
    licences.write_text(HEAD + "".join(rows))


if __name__ == "__main__":
    if {"-h", "--help"}.intersection(sys.argv):
        print(__doc__)
    else:
        main(*map(Path, sys.argv[1:]))
