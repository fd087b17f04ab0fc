"""The README of the Helm chart: its values, from the schema and the defaults."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHART: Final = "deploy/helm/ckpt-exporter"
_HEAD: Final = """\
# Helm chart of ckpt-exporter

    helm install ckpt-exporter deploy/helm/ckpt-exporter --namespace ckpt-exporter --create-namespace \\
        --set image.repository=registry.example.com/ckpt-exporter \\
        --set 'directories[0].name=llama' --set 'directories[0].path=/lustre/llama/checkpoints'

The namespace must admit `hostPID` and host paths: label it `pod-security.kubernetes.io/enforce=privileged`.
The pods themselves run without root, capabilities, token or writable root; `readAll` is there for checkpoint
trees that only their owners may read. [deploy/README.md](../../README.md) leads through an installation.

`files/` links to the rules, alerts and dashboards of this repository; `helm package` puts them in.

## Values

Made from `values.schema.json` and `values.yaml` (`make generated`).

| value | default | meaning |
|---|---|---|
"""


def chart_readme(root: Path) -> str:
    """Return the README: one row for each value that has no values of its own below it."""
    schema = json.loads((root / CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((root / CHART / "values.yaml").read_text(encoding="utf-8"))
    return _HEAD + "".join(f"{row}\n" for row in _rows(schema["properties"], values, ""))


def _rows(properties: dict[str, Any], values: dict[str, Any], prefix: str) -> Iterator[str]:
    for name, about in properties.items():
        if name not in values:  # what only a parent chart sets
            continue
        if "properties" in about:
            yield f"| **`{prefix}{name}`** | | {about['description']} |"
            yield from _rows(about["properties"], values[name], f"{prefix}{name}.")
        else:
            choices = (
                f" One of {', '.join(f'`{choice}`' for choice in about['enum'])}." if "enum" in about else ""
            )
            yield f"| `{prefix}{name}` | {_default(values[name])} | {about['description']}{choices} |"


def _default(value: object) -> str:
    text = json.dumps(value)
    if len(text) > 60:
        return "see values.yaml"
    return f"`{text}`"
