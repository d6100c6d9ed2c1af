"""The chart in config/helm/chronos: what Helm makes of it is accepted by Kubernetes and by Chronos.

No cluster runs here: objects are compared with the schemas of Kubernetes, and their commands,
ports, paths, files and times with the code."""

import copy
import json
import os
import re
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from chronos.admin.http.routes import table
from chronos.cli.app import app
from chronos.config import Config, load
from chronos.config.catalogue import keys
from tests.harness.helm import HelmError, lint, render
from tests.harness.pages import DOCS, ROOT, blocks, inline
from tests.harness.prometheus import JOB
from tests.harness.stopping import LONGEST_STOP_S

pytestmark = pytest.mark.tools

CHART = ROOT / "config" / "helm" / "chronos"
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
PAGE = DOCS / "how-to" / "kubernetes.md"

KUBERNETES = ("1.27", "1.37")
"""The oldest version that the page names, and the newest with schemas."""

NAMES = ("cluster", "secrets", "evaluation")
"""The values of the page, in its order."""

variants = pytest.mark.parametrize("name", NAMES)


def values(name: str) -> dict[str, Any]:
    """The values that the page shows."""
    shown = [yaml.safe_load(block) for block in blocks(PAGE, "yaml")]
    assert len(shown) == len(NAMES)
    return copy.deepcopy(dict(zip(NAMES, shown, strict=True))[name])


@cache
def objects(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What Helm makes of them, by kind and name."""
    return by_name(render(CHART, values(name)))


def by_name(found: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    named = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(named) == len(found)
    return named


def pod(found: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    return found["StatefulSet", "chronos"]["spec"]["template"]


def container(found: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    (only,) = pod(found)["spec"]["containers"]
    return only


def variables(found: dict[tuple[str, str], dict[str, Any]]) -> dict[str, str]:
    """The variables of the first pod, as Kubernetes sets them."""
    known: dict[str, str] = {}
    for each in container(found)["env"]:
        if "value" in each:
            text = re.sub(r"\$\((\w+)\)", lambda match: known[match[1]], each["value"])
        elif "fieldRef" in each["valueFrom"]:
            assert each["valueFrom"]["fieldRef"] == {"fieldPath": "metadata.name"}
            text = "chronos-0"
        else:
            text = f"of {each['valueFrom']['secretKeyRef']['key']}"
        known[each["name"]] = text
    return known


def settings(found: dict[tuple[str, str], dict[str, Any]], folder: Path) -> Config:
    """The settings with which the first pod starts."""
    file = folder / "chronos.yaml"
    file.write_text(found["ConfigMap", "chronos"]["data"]["chronos.yaml"])
    return load(str(file), variables(found), [])


def mounted(found: dict[tuple[str, str], dict[str, Any]]) -> Iterator[str]:
    """The files that the volumes put into the container."""
    volumes = {each["name"]: each for each in pod(found)["spec"]["volumes"]}
    for mount in container(found)["volumeMounts"]:
        volume = volumes.get(mount["name"], {})
        if "configMap" in volume:
            kept = found["ConfigMap", volume["configMap"]["name"]]["data"]
            yield from (f"{mount['mountPath']}/{key}" for key in kept)
        for item in volume.get("secret", {}).get("items", []):
            yield f"{mount['mountPath']}/{item['path']}"


def test_lint_finds_nothing() -> None:
    """Apart from the icon, which it recommends."""
    assert lint(CHART).splitlines() == [
        "[INFO] Chart.yaml: icon is recommended",
        "Failed: false",
    ]


@variants
def test_every_object_fits_the_schemas_of_kubernetes(name: str) -> None:
    """Of the oldest and the newest version; a field that a schema does not know is refused."""
    checked = 0
    for found in objects(name).values():
        assert found["metadata"]["namespace"] == "shop"
        if found["kind"] == "ServiceMonitor":  # not of Kubernetes itself
            continue
        for version in KUBERNETES:
            kubernetes_validate.validate(found, version, strict=True)
            checked += 1
    assert checked >= 2 * 6
    assert ("ServiceMonitor" in {kind for kind, _ in objects(name)}) == (name == "secrets")


@variants
def test_chronos_accepts_the_settings_and_variables_of_a_pod(name: str, tmp_path: Path) -> None:
    """The name of the pod is the node id; the data directory is on the volume, and not its root."""
    found = objects(name)
    config = settings(found, tmp_path)
    assert config.node.id == "chronos-0"
    (data,) = [each for each in container(found)["volumeMounts"] if each["name"] == "data"]
    assert Path(config.node.data_dir).parent == Path(data["mountPath"])
    (claim,) = found["StatefulSet", "chronos"]["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == data["name"]
    scheme = "https" if name == "secrets" else "http"
    assert config.admin.advertised == (
        f"{scheme}://chronos-0.chronos-nodes.shop.svc.cluster.local:{config.admin.port}"
    )
    assert (config.admin.open, config.admin.tokens is None) == ((name == "evaluation",) * 2)
    assert (config.log.kind, config.coordinator.kind) == (
        ("embedded", "standalone") if name == "evaluation" else ("kafka", "kafka")
    )
    # Services of the same name would set variables that are no settings.
    assert pod(found)["spec"]["enableServiceLinks"] is False


def test_secrets_reach_the_settings(tmp_path: Path) -> None:
    """Kafka's user and password, the tokens and the certificates; the settings of the page too."""
    properties = settings(objects("cluster"), tmp_path).log.kafka.properties
    assert properties["sasl.username"] == "of username"
    assert properties["sasl.password"] == "of password"
    assert properties["sasl.mechanism"] == "SCRAM-SHA-512"
    config = settings(objects("secrets"), tmp_path)
    assert config.admin.tls.client_certificates == "optional"  # probes show none
    assert config.log.kafka.properties["security.protocol"] == "SSL"
    assert {"chronos", "chronos.shop", "chronos.shop.svc", "chronos.example.org"} < set(
        config.admin.allowed_hosts
    )


@variants
def test_every_file_that_is_named_is_mounted(name: str) -> None:
    """In the settings and in the variables."""
    found = objects(name)
    texts = [found["ConfigMap", "chronos"]["data"]["chronos.yaml"], *variables(found).values()]
    named = set(re.findall(r"/etc/chronos/[\w./-]+", "\n".join(texts)))
    assert named == set(mounted(found))


@variants
def test_commands_ports_and_paths_are_those_of_the_code(name: str, tmp_path: Path) -> None:
    """Probes need no token and no certificate."""
    found = objects(name)
    main, config = container(found), settings(found, tmp_path)
    assert main["args"][0] in typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert main["ports"] == [{"name": "http", "containerPort": config.admin.port}]
    served = {route.path for route in table(None)}
    scheme = "HTTP" if config.admin.tls.certificate is None else "HTTPS"
    for probe, path in (("startup", "/livez"), ("liveness", "/livez"), ("readiness", "/readyz")):
        assert main[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "http", "scheme": scheme}
        assert path in served
    for kind, each in found:
        if kind == "Service":
            (port,) = found[kind, each]["spec"]["ports"]
            assert (port["name"], port["targetPort"]) == (scheme.lower(), "http")


@variants
def test_a_stop_has_more_time_than_it_takes_at_most(name: str) -> None:
    """A node that is killed costs a failover."""
    found = objects(name)
    command, waited = container(found)["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    assert LONGEST_STOP_S < 60  # what the chart asks for, and the page says
    assert pod(found)["spec"]["terminationGracePeriodSeconds"] > LONGEST_STOP_S + int(waited)


@variants
def test_one_pod_at_a_time_is_updated_or_evicted(name: str) -> None:
    """All start at once: a node may need another one to become ready."""
    spec = objects(name)["StatefulSet", "chronos"]["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["updateStrategy"] == {"type": "RollingUpdate"}
    assert objects(name)["PodDisruptionBudget", "chronos"]["spec"]["maxUnavailable"] == 1
    assert objects(name)["Service", "chronos-nodes"]["spec"]["publishNotReadyAddresses"] is True
    assert spec["serviceName"] == "chronos-nodes"


@variants
def test_every_selector_selects_the_pods(name: str) -> None:
    """Those of the services, the budget, the policy and the spread; Prometheus finds one service,
    the one that names each node."""
    found = objects(name)
    labels = pod(found)["metadata"]["labels"].items()
    selectors = [each["spec"]["selector"] for (kind, _), each in found.items() if kind == "Service"]
    selectors += [
        found["StatefulSet", "chronos"]["spec"]["selector"]["matchLabels"],
        found["PodDisruptionBudget", "chronos"]["spec"]["selector"]["matchLabels"],
        found["NetworkPolicy", "chronos"]["spec"]["podSelector"]["matchLabels"],
        found["NetworkPolicy", "chronos"]["spec"]["ingress"][0]["from"][0]["podSelector"][
            "matchLabels"
        ],
        *(
            each["labelSelector"]["matchLabels"]
            for each in pod(found)["spec"]["topologySpreadConstraints"]
        ),
    ]
    assert len(selectors) == 8
    for selector in selectors:
        assert selector
        assert selector.items() <= labels
    if name == "secrets":
        monitor = found["ServiceMonitor", "chronos"]["spec"]
        wanted = monitor["selector"]["matchLabels"].items()
        assert [
            each["metadata"]["name"]
            for (kind, _), each in found.items()
            if kind == "Service" and wanted <= each["metadata"]["labels"].items()
        ] == ["chronos-nodes"]
        # The alert rules and the dashboards select by the job.
        assert found["Service", "chronos-nodes"]["metadata"]["labels"][monitor["jobLabel"]] == JOB
        (endpoint,) = monitor["endpoints"]
        assert endpoint["path"] in {route.path for route in table(None)}
        assert endpoint["port"] == found["Service", "chronos-nodes"]["spec"]["ports"][0]["name"]
        assert endpoint["authorization"]["credentials"] == {
            "name": "chronos-metrics",
            "key": "token",
        }


@variants
def test_pods_are_restricted(name: str) -> None:
    """The profile `restricted` of the Pod Security Standards, and a read-only root; the user is the
    one of the image."""
    spec, main = pod(objects(name))["spec"], container(objects(name))
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert main["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    (user,) = re.findall(r"^USER (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    ids = spec["securityContext"]
    assert user == f"{ids['runAsUser']}:{ids['runAsGroup']}"
    assert ids["fsGroup"] == ids["runAsGroup"]
    assert {"cpu", "memory"} <= set(main["resources"]["requests"])


def test_the_chart_is_of_this_version() -> None:
    """The tag of the image is the version of the package, unless the values name another one."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert container(objects("evaluation"))["image"] == f"chronos:{version}"
    digest = "sha256:" + "0" * 64
    named = {**values("evaluation"), "image": {"tag": "x", "digest": digest}}
    assert container(by_name(render(CHART, named)))["image"] == f"chronos:x@{digest}"


def test_changed_settings_restart_the_pods_and_nothing_else_does() -> None:
    """Also numbers of a million and more are the same in the settings as in the values."""
    changed = values("cluster")
    changed["config"]["limits"] = {"disk_reserve": 8_000_000}
    other = by_name(render(CHART, changed))
    text = other["ConfigMap", "chronos"]["data"]["chronos.yaml"]
    assert yaml.safe_load(text)["limits"] == {"disk_reserve": 8_000_000}
    before = pod(objects("cluster"))["metadata"]["annotations"]
    assert pod(other)["metadata"]["annotations"] != before
    bigger = pod(by_name(render(CHART, {**values("cluster"), "service": {"port": 80}})))
    assert bigger["metadata"]["annotations"] == before


def test_what_is_off_is_not_there() -> None:
    """The policy, the budget, and the time before the stop."""
    found = by_name(
        render(
            CHART,
            {
                **values("cluster"),
                "networkPolicy": {"enabled": False},
                "podDisruptionBudget": {"enabled": False},
                "preStopSeconds": 0,
                "topologySpreadConstraints": [],
            },
        )
    )
    assert {kind for kind, _ in found} == {"ConfigMap", "Service", "StatefulSet"}
    assert "lifecycle" not in container(found)
    assert "topologySpreadConstraints" not in pod(found)["spec"]


REFUSED = [
    ({"config": {"log": {"kafka": {"bootstrap_servers": ""}}}}, "bootstrap_servers"),
    ({"config": {"coordinator": {"kind": "standalone"}}}, "replicaCount: 1"),
    ({"config": {"coordinator": {"kind": "raft"}}}, "config.coordinator.kind"),
    ({"config": {"node": {"id": "other"}}}, "config.node is set by the chart"),
    ({"config": {"admin": {"port": 80}}}, "config.admin.port is set by the chart"),
    ({"tokens": {"existingSecret": ""}}, "tokens.open"),
    ({"tokens": {"open": True}}, "contradicts"),
    ({"serviceMonitor": {"enabled": True}}, "serviceMonitor.tokenSecret"),
    ({"terminationGracePeriodSeconds": 65}, "terminationGracePeriodSeconds"),
    ({"replicas": 5}, "Additional property replicas"),
    ({"persistence": {"size": "large"}}, "persistence.size"),
    ({"image": {"digest": "0123"}}, "image.digest"),
]


def test_values_that_contradict_each_other_or_the_schema_are_refused() -> None:
    """With a text that names the value."""

    def answer(change: dict[str, Any]) -> str:
        try:
            render(CHART, merged(values("cluster"), change))
        except HelmError as error:
            return str(error)
        return "accepted"

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(answer, [change for change, _ in REFUSED]))
    wrong = [
        (change, text)
        for (change, part), text in zip(REFUSED, answers, strict=True)
        if part not in text
    ]
    assert wrong == []


def merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """As Helm merges values."""
    found = dict(base)
    for key, value in change.items():
        inner = found.get(key)
        both = isinstance(inner, dict) and isinstance(value, dict)
        found[key] = merged(inner, value) if both else value  # type: ignore[arg-type]
    return found


def test_the_schema_and_the_defaults_have_the_same_values() -> None:
    """A value without an entry could not be set; one without a default would not be found."""

    def compare(schema: dict[str, Any], given: Any, path: str) -> int:
        if schema.get("additionalProperties") is not False:
            return 1
        # Helm gives every chart a value `global`.
        assert set(schema["properties"]) - {"global"} == set(given), path
        return sum(
            compare(schema["properties"][key], value, f"{path}.{key}")
            for key, value in given.items()
        )

    schema = json.loads((CHART / "values.schema.json").read_text())
    assert compare(schema, DEFAULTS, "") > 40


def test_values_that_the_page_names_are_there() -> None:
    """In backticks; those of `config` are settings."""
    named = {each for each in inline(PAGE) if each.split(".")[0] in DEFAULTS}
    assert len(named) > 10
    for path in named:
        found: Any = DEFAULTS
        if path.startswith("config."):
            assert path.removeprefix("config.") in keys()
        else:
            for key in path.split("."):
                found = found[key]
