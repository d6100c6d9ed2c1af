"""Helm for tests: renders a chart with values, and lints it, without a cluster.

Helm is a shared library inside the jar that `scripts/helm/pom.xml` names. It runs in a process of
its own, `python -m tests.harness.helm`, since its Go runtime would stay in the process of the
tests.

This is not a fixture, and never a reason to skip a test: where the library cannot be fetched or
loaded, a call raises `JarsMissing` or `HelmError`, which gives the reason."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tests.harness.java import ROOT, jars

LIBRARY = "helm-linux-amd64.so"

TIMEOUT_S = 60.0
"""Rendering takes 0.3 s; the bound is for a loaded machine."""


class HelmError(Exception):
    """Helm refused the chart or the values; the message is Helm's own."""


class _Result(ctypes.Structure):
    _fields_ = [(name, ctypes.c_char_p) for name in ("out", "err", "stdout", "stderr")]


class _TemplateOptions(ctypes.Structure):
    """`struct TemplateOptions` of `helm-linux-amd64.h` in the jar."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_char_p),
        ("chart", ctypes.c_char_p),
        ("namespace", ctypes.c_char_p),
        ("dependency_update", ctypes.c_int),
        ("values", ctypes.c_char_p),
        ("values_files", ctypes.c_char_p),
        ("cert_file", ctypes.c_char_p),
        ("key_file", ctypes.c_char_p),
        ("ca_file", ctypes.c_char_p),
        ("insecure_skip_tls_verify", ctypes.c_int),
        ("plain_http", ctypes.c_int),
        ("keyring", ctypes.c_char_p),
        ("debug", ctypes.c_int),
        ("repository_config", ctypes.c_char_p),
    ]


class _LintOptions(ctypes.Structure):
    """`struct LintOptions` of the same file."""

    _fields_ = [("path", ctypes.c_char_p), ("strict", ctypes.c_int), ("quiet", ctypes.c_int)]


def render(
    chart: Path, values: Mapping[str, Any], *, release: str = "chronos", namespace: str = "shop"
) -> list[dict[str, Any]]:
    """The objects of the chart with these values, as `helm template` makes them. Raises HelmError,
    JarsMissing."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "values.yaml")
        file.write_text(yaml.safe_dump(dict(values)))
        text = _ask("template", release, namespace, str(chart), str(file))
    return [found for found in yaml.safe_load_all(text) if found is not None]


def lint(chart: Path) -> str:
    """What `helm lint --strict` says of the chart with its own values. Raises HelmError,
    JarsMissing."""
    return _ask("lint", str(chart))


def _ask(*arguments: str) -> str:
    answered = subprocess.run(
        [sys.executable, "-m", "tests.harness.helm", str(_library()), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if answered.returncode != 0:
        raise HelmError(f"no answer of Helm: {answered.stderr}")
    answer = json.loads(answered.stdout)
    if answer["err"]:
        raise HelmError(answer["err"])
    return str(answer["out"])


@cache
def _library() -> Path:
    """The shared library, unpacked beside its jar, which is fetched if it is missing."""
    folder = jars("helm")
    library = folder / LIBRARY
    if not library.exists():
        (jar,) = folder.glob("*.jar")
        with TemporaryDirectory(dir=folder) as partial, zipfile.ZipFile(jar) as archive:
            os.replace(archive.extract(LIBRARY, partial), library)
    return library


def _call(library: str, verb: str, *arguments: str) -> Iterator[tuple[str, str]]:
    """The fields of Helm's answer."""
    helm = ctypes.CDLL(library)
    words = [argument.encode() for argument in arguments]
    if verb == "lint":
        helm.Lint.restype = _Result
        result = helm.Lint(ctypes.byref(_LintOptions(path=words[0], strict=1)))
    else:
        name, namespace, chart, file = words
        helm.Template.restype = _Result
        options = _TemplateOptions(name=name, namespace=namespace, chart=chart, values_files=file)
        result = helm.Template(ctypes.byref(options))
    for field in ("out", "err"):
        yield field, (getattr(result, field) or b"").decode()


if __name__ == "__main__":
    print(json.dumps(dict(_call(*sys.argv[1:]))))
