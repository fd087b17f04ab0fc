"""The kustomization: what it makes, checked against Kubernetes' schemas and against what it promises."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ckpt_exporter.cli import parse_arguments
from ckpt_exporter.config.fragments import Fragments
from ckpt_exporter.config.load import load_config
from deploy.packaging import GENERATED
from deploy.packaging.monitoring import (
    DASHBOARDS,
    RULE_FILES,
    config_map_name,
    dashboards_kustomization,
    prometheus_rule,
)
from tests.deploy.manifests import (
    GPU_LABELS,
    NEIGHBOURS,
    Object,
    check_probes,
    check_promises,
    check_schemas,
    container,
    gpu_labels,
    one,
    pod,
)
from tests.integration.daemon import REPOSITORY

KUBERNETES = REPOSITORY / "deploy/kubernetes"
KUBECTL = shutil.which("kubectl", path=Path(sys.executable).parent) or shutil.which("kubectl")
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="kubectl is missing")


def build(directory: Path) -> list[Object]:
    """Return what a kustomization makes."""
    done = subprocess.run(
        [str(KUBECTL), "kustomize", directory], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def overlay(place: Path, **fields: object) -> Path:
    """Write a kustomization of the test's own; it must stand where relative paths lead to the base."""
    (place / "kustomization.yaml").write_text(yaml.safe_dump(fields))
    return place


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the manifests beside which a test may write."""
    shutil.copytree(KUBERNETES, tmp_path / "deploy/kubernetes")
    (tmp_path / "deploy/kubernetes/mine").mkdir()
    return tmp_path / "deploy/kubernetes"


@needs_kubectl
class TestBase:
    def test_schemas(self) -> None:
        """The base and the examples are valid in the oldest and the newest version."""
        for name in ("base", "examples/host-paths", "examples/volumes"):
            check_schemas(build(KUBERNETES / name))

    def test_promises(self) -> None:
        """No root, capability, token, network, writable root or GPU claim."""
        objects = build(KUBERNETES / "base")
        check_promises(objects)
        check_probes(objects)
        assert pod(objects)["hostPID"] is True

    def test_gpu_nodes_only(self) -> None:
        """It runs where any of the known labels says NVIDIA GPU, whatever the taints."""
        objects = build(KUBERNETES / "base")
        assert gpu_labels(objects) == GPU_LABELS
        assert pod(objects)["tolerations"] == [{"operator": "Exists"}]

    def test_arguments(self) -> None:
        """The program takes the arguments that it is started with."""
        parse_arguments(container(build(KUBERNETES / "base"))["args"])


def configured(objects: list[Object], place: Path) -> list[tuple[str, str]]:
    """Read the configuration as the daemon in the pod would; return names and paths of its directories."""
    maps = {thing["metadata"]["name"]: thing["data"] for thing in objects if thing["kind"] == "ConfigMap"}
    for volume in pod(objects)["volumes"]:
        if "configMap" in volume:
            (place / volume["name"]).mkdir()
            for file, text in maps[volume["configMap"]["name"]].items():
                (place / volume["name"] / file).write_text(text)
    mounted = {mount["name"]: mount["mountPath"] for mount in container(objects)["volumeMounts"]}
    text = (place / "config/config.yml").read_text()
    (place / "config/config.yml").write_text(text.replace(mounted["directories"], str(place / "directories")))
    config = Fragments(lambda: load_config(str(place / "config/config.yml"), ()), ()).read()
    assert config.refused == ()
    return [(directory.name, directory.path) for directory in config.directories]


@needs_kubectl
class TestExamples:
    def test_host_paths(self, tmp_path: Path) -> None:
        """The example watches what it mounts, in a namespace that admits it."""
        objects = build(KUBERNETES / "examples/host-paths")
        check_promises(objects)
        assert configured(objects, tmp_path) == [("llama", "/lustre/llama/checkpoints")]
        assert "/lustre" in [mount["mountPath"] for mount in container(objects)["volumeMounts"]]
        labels = one(objects, "Namespace")["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "privileged"

    def test_volumes(self, tmp_path: Path) -> None:
        """The example for volumes may read the kubelet's directory, and reads only."""
        objects = build(KUBERNETES / "examples/volumes")
        check_promises(objects, read_all=True)
        ((name, path),) = configured(objects, tmp_path)
        assert name == "volumes"
        assert path.startswith("/var/lib/kubelet/pods/*/")

    @pytest.mark.parametrize("vendor", NEIGHBOURS)
    def test_other_vendors(self, vendor: str, tmp_path: Path) -> None:
        """On nodes of other vendors their own exporter is asked: nothing of NVIDIA, no right, no device."""
        neighbour, labels = NEIGHBOURS[vendor]
        objects = build(KUBERNETES / f"examples/{vendor}")
        check_schemas(objects)
        check_promises(objects, neighbour=neighbour)
        assert gpu_labels(objects) == labels
        assert configured(objects, tmp_path) == [("llama", "/lustre/llama/checkpoints")]

    def test_live_directories(self) -> None:
        """The list of directories keeps its name when it changes, so that running pods follow it."""
        objects = build(KUBERNETES / "examples/host-paths")
        maps = [thing["metadata"]["name"] for thing in objects if thing["kind"] == "ConfigMap"]
        assert "ckpt-exporter-directories" in maps
        assert any(name.startswith("ckpt-exporter-") and name != "ckpt-exporter-directories" for name in maps)


@needs_kubectl
class TestComponents:
    def test_runtime_class(self, tree: Path) -> None:
        """The component asks for NVIDIA's runtime and changes nothing else."""
        directory = overlay(
            tree / "mine", resources=["../base"], components=["../components/nvidia-runtime-class"]
        )
        objects = build(directory)
        check_schemas(objects)
        check_promises(objects)
        assert pod(objects)["runtimeClassName"] == "nvidia"

    def test_pod_monitor(self, tree: Path) -> None:
        """The monitor finds the pods by their labels and port, and calls them by node and by job."""
        objects = build(
            overlay(tree / "mine", resources=["../base"], components=["../components/pod-monitor"])
        )
        monitor = one(objects, "PodMonitor")["spec"]
        labels = one(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
        assert monitor["selector"]["matchLabels"].items() <= labels.items()
        (endpoint,) = monitor["podMetricsEndpoints"]
        assert endpoint["port"] == container(objects)["ports"][0]["name"]
        assert {rule["targetLabel"] for rule in endpoint["relabelings"]} == {"instance"}
        assert labels[monitor["jobLabel"]] == "ckpt-exporter"

    def test_rules_and_dashboards_of_a_site(self, tree: Path) -> None:
        """Rules and dashboards reach the cluster as they stand in their files, with what finds them."""
        root = tree.parents[1]
        rule = {
            "alert": "CkptX",
            "expr": "sum(a) >\n  1\n",
            "annotations": {"summary": "{{ $labels.dir }} is 5 %."},
        }
        for name in RULE_FILES:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(yaml.safe_dump({"groups": [{"name": Path(name).stem, "rules": [rule]}]}))
        (root / DASHBOARDS).mkdir(parents=True)
        (root / DASHBOARDS / "ckpt-bubble_cost.json").write_text('{"title": "${x}"}')
        (tree / "components/prometheus-rules/rules.yaml").write_text(prometheus_rule(root) or "")
        (root / "grafana/kustomization.yaml").write_text(dashboards_kustomization(root) or "")

        objects = build(tree / "examples/prometheus-operator")
        check_schemas(objects)
        found = one(objects, "PrometheusRule")
        assert found["spec"]["groups"] == [{"name": Path(name).stem, "rules": [rule]} for name in RULE_FILES]
        assert found["metadata"]["labels"]["release"] == "kube-prometheus-stack"
        (dashboard,) = [o for o in objects if "grafana_dashboard" in o["metadata"].get("labels", {})]
        assert dashboard["metadata"]["name"] == "ckpt-exporter-dashboard-bubble-cost"
        assert dashboard["data"] == {"ckpt-bubble_cost.json": '{"title": "${x}"}'}


@needs_kubectl
@pytest.mark.skipif(prometheus_rule(REPOSITORY) is None, reason="no rules yet in deploy/prometheus")
def test_shipped_rules_are_those_of_prometheus() -> None:
    """The resource of Prometheus operator has exactly the groups of the rule files."""
    groups = [g for name in RULE_FILES for g in yaml.safe_load((REPOSITORY / name).read_text())["groups"]]
    assert (
        one(build(KUBERNETES / "examples/prometheus-operator"), "PrometheusRule")["spec"]["groups"] == groups
    )


@needs_kubectl
@pytest.mark.skipif(dashboards_kustomization(REPOSITORY) is None, reason="no dashboards yet in grafana")
def test_shipped_dashboards_are_those_of_grafana() -> None:
    """Each dashboard is a ConfigMap with the file's own text, found by its label."""
    objects = build(REPOSITORY / "grafana")
    check_schemas(objects)
    for file in (REPOSITORY / DASHBOARDS).glob("*.json"):
        (found,) = [thing for thing in objects if thing["metadata"]["name"] == config_map_name(file.stem)]
        assert found["data"] == {file.name: file.read_text()}
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(file.read_bytes()) < 1_000_000


def test_generated_rules_have_a_source() -> None:
    """Nothing generated is left over from rules or dashboards that are gone."""
    for name, make in GENERATED.items():
        assert not (REPOSITORY / name).exists() or make(REPOSITORY) is not None, name
