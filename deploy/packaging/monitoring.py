"""Rules and dashboards as Kubernetes takes them, from the files that Prometheus and Grafana read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from pathlib import Path

RULE_FILES: Final = ("deploy/prometheus/rules.yml", "deploy/prometheus/alerts.yml")
DASHBOARDS: Final = "grafana/dashboards"
_NOTICE: Final = "# Made by `make generated`: do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """Writes long expressions as they are written in the rules: line by line."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _dump(document: dict[str, Any]) -> str:
    return _NOTICE + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def prometheus_rule(root: Path) -> str | None:
    """Return all rule files as one resource of Prometheus operator; None where there are none yet."""
    files = [root / name for name in RULE_FILES]
    if not any(file.exists() for file in files):
        return None
    groups = [
        group
        for file in files
        if file.exists()
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    ]
    return _dump(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "ckpt-exporter", "labels": {"app.kubernetes.io/name": "ckpt-exporter"}},
            "spec": {"groups": groups},
        }
    )


def dashboards_kustomization(root: Path) -> str | None:
    """Return what makes a ConfigMap of each dashboard; None where there are none yet.

    It has to stand above the dashboards, because kustomize reads files only below its own directory.
    """
    names = sorted(path.stem for path in (root / DASHBOARDS).glob("*.json"))
    if not names:
        return None
    return _dump(
        {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            # Grafana's sidecar finds dashboards by this label.
            "generatorOptions": {"labels": {"grafana_dashboard": "1"}, "disableNameSuffixHash": True},
            "configMapGenerator": [
                {"name": config_map_name(name), "files": [f"dashboards/{name}.json"]} for name in names
            ],
        }
    )


def config_map_name(dashboard: str) -> str:
    """Name the ConfigMap of a dashboard."""
    return f"ckpt-exporter-dashboard-{dashboard.removeprefix('ckpt-').replace('_', '-').lower()}"
