"""Files made from the program and its locked packages: man page, completions, licences, bill of materials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deploy.packaging.chart import CHART, chart_readme
from deploy.packaging.completion import bash, fish, zsh
from deploy.packaging.dependencies import bill_of_materials, licences_page
from deploy.packaging.manpage import man_page
from deploy.packaging.monitoring import dashboards_kustomization, prometheus_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

# Each generated file, and what makes its text from the root of the repository; None without its source.
GENERATED: Final[Mapping[str, Callable[[Path], str | None]]] = {
    "deploy/share/man/man1/ckpt-exporter.1": lambda _root: man_page(),
    "deploy/share/bash-completion/completions/ckpt-exporter": lambda _root: bash(),
    "deploy/share/zsh/site-functions/_ckpt-exporter": lambda _root: zsh(),
    "deploy/share/fish/vendor_completions.d/ckpt-exporter.fish": lambda _root: fish(),
    "docs/LICENCES.md": licences_page,
    "deploy/sbom.cdx.json": bill_of_materials,
    "deploy/kubernetes/components/prometheus-rules/rules.yaml": prometheus_rule,
    f"{CHART}/README.md": chart_readme,
    "grafana/kustomization.yaml": dashboards_kustomization,
}
