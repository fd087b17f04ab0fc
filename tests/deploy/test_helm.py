"""The Helm chart: rendered by Helm itself with the values that users change."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ckpt_exporter import __version__
from ckpt_exporter.cli import parse_arguments
from ckpt_exporter.config.load import load_config
from ckpt_exporter.detect.layouts import LAYOUT_NAMES
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

helm = pytest.importorskip("helm_python", reason="helm-python-sdk is missing")

CHART = REPOSITORY / "deploy/helm/ckpt-exporter"
LLAMA = {"name": "llama", "path": "/lustre/llama/ckpt"}
RULES = {
    "rules": [{"name": "ckpt", "interval": "30s", "rules": [{"record": "dir:a:rate5m", "expr": "a\n"}]}],
    "alerts": [
        {
            "name": "alerts",
            "rules": [
                {"alert": "CkptA", "expr": "a > 1", "annotations": {"summary": "{{ $labels.dir }}: 5 %."}},
                {"alert": "CkptB", "expr": "b > 1"},
            ],
        }
    ],
}
HAS_SOURCES = all((CHART / "files" / name).exists() for name in ("rules.yml", "alerts.yml", "dashboards"))


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the chart as packaging leaves it, links followed, with rules and a dashboard of the tests."""
    place = tmp_path_factory.mktemp("chart") / "ckpt-exporter"
    shutil.copytree(CHART, place, ignore=shutil.ignore_patterns("files"))
    (place / "files/dashboards").mkdir(parents=True)
    for name, groups in RULES.items():
        (place / f"files/{name}.yml").write_text(yaml.safe_dump({"groups": groups}))
    (place / "files/dashboards/ckpt-bubble_cost.json").write_text('{\n  "title": "{{ dir }} ${x}"\n}\n')
    return place


class Renderer:
    """Renders the chart."""

    def __init__(self, place: Path) -> None:
        self._chart = helm.Chart.load(str(place))

    def __call__(self, values: dict[str, Any] | None = None, **more: Any) -> list[Object]:
        """Return the objects, each valid, for these values and one directory unless they say otherwise."""
        given = {"directories": [LLAMA], **(values or {}), **more}
        texts = self._chart.render(given, name="ckpt-exporter", namespace="monitoring")
        objects = [
            thing
            for name, text in texts.items()
            if not name.endswith("NOTES.txt")
            for thing in yaml.safe_load_all(text)
            if thing is not None
        ]
        check_schemas(objects)
        return objects


@pytest.fixture(scope="module")
def render(packaged: Path) -> Renderer:
    """Return what renders the chart."""
    return Renderer(packaged)


def config_of(objects: list[Object], place: Path) -> Any:
    """Load the configuration that the pod gets."""
    file = place / "config.yml"
    (data,) = [o["data"] for o in objects if o["kind"] == "ConfigMap" and "config.yml" in o["data"]]
    file.write_text(data["config.yml"])
    return load_config(str(file), LAYOUT_NAMES)


def mounts(objects: list[Object]) -> list[str]:
    """Return the paths of the node that are mounted."""
    return [v["hostPath"]["path"] for v in pod(objects)["volumes"] if "hostPath" in v]


class TestDefaults:
    def test_lint(self, packaged: Path) -> None:
        """Helm's own check finds no error and no warning."""
        found = helm.lint(str(packaged), values={"directories": [LLAMA]})
        assert found["errors"] == []
        assert [m for m in found["messages"] if m["severity"] > 1] == []

    def test_promises(self, render: Renderer) -> None:
        """The chart promises what the kustomization promises."""
        objects = render()
        check_promises(objects)
        check_probes(objects)
        assert gpu_labels(objects) == GPU_LABELS
        assert pod(objects)["hostPID"] is True
        parse_arguments(container(objects)["args"])

    def test_nothing_of_an_operator(self, render: Renderer) -> None:
        """Without being asked to, the chart makes nothing that needs other definitions in the cluster."""
        assert not [o for o in render() if o["apiVersion"].startswith("monitoring")]

    def test_config(self, render: Renderer, tmp_path: Path) -> None:
        """The daemon reads its configuration, with its defaults."""
        config = config_of(render(), tmp_path)
        assert [(d.name, d.path, d.layout) for d in config.directories] == [
            ("llama", "/lustre/llama/ckpt", "auto")
        ]
        assert config.web.listen_address == ":10047"

    def test_version(self, render: Renderer) -> None:
        """The chart's image is the version of the program."""
        assert container(render())["image"] == f"ckpt-exporter:{__version__}"


class TestValues:
    def test_image(self, render: Renderer) -> None:
        """Registry, tag, digest and secrets of the image."""
        image = {"repository": "r.example/c", "tag": "9"}
        assert container(render(image=image))["image"] == "r.example/c:9"
        digest = "sha256:" + "a" * 64
        assert container(render(image={**image, "digest": digest}))["image"] == f"r.example/c@{digest}"
        assert pod(render(imagePullSecrets=[{"name": "s"}]))["imagePullSecrets"] == [{"name": "s"}]

    def test_directories(self, render: Renderer, tmp_path: Path) -> None:
        """Each directory is watched and mounted once: above its wildcard, and not below what is mounted."""
        directories = [
            {"name": "a", "path": "/lustre/*/ckpt", "layout": "deepspeed", "ignore": ["*.log"]},
            {"name": "b", "path": "/lustre/team/b"},
            {"name": "c", "path": "/nvme/c"},
        ]
        objects = render(directories=directories, hostPaths=["/nvme2"])
        check_promises(objects)
        assert mounts(objects) == ["/lustre", "/nvme/c", "/nvme2"]
        config = config_of(objects, tmp_path)
        assert [d.path for d in config.directories] == ["/lustre/*/ckpt", "/lustre/team/b", "/nvme/c"]
        assert (config.directories[0].layout, config.directories[0].ignore) == ("deepspeed", ("*.log",))

    def test_own_mounts(self, render: Renderer) -> None:
        """Where the directories' own paths are not to be mounted, those of hostPaths are, alone."""
        objects = render(mountDirectories=False, hostPaths=["/lustre"])
        assert mounts(objects) == ["/lustre"]

    def test_volumes(self, render: Renderer, tmp_path: Path) -> None:
        """Volumes of pods are watched where the kubelet has them, with the rights that this needs."""
        values = {"directories": [], "volumes": {"enabled": True, "path": "/out/"}, "readAll": True}
        objects = render(values)
        check_promises(objects, read_all=True)
        assert mounts(objects) == ["/var/lib/kubelet/pods"]
        (directory,) = config_of(objects, tmp_path).directories
        assert directory.path == "/var/lib/kubelet/pods/*/volumes/kubernetes.io~csi/*/mount/out"

    def test_more_configuration(self, render: Renderer, tmp_path: Path) -> None:
        """The rest of the configuration file is passed on; the port has one place."""
        config = config_of(
            render(config={"detect": {"quiet_seconds": 3}, "web": {"telemetry_path": "/m"}}, port=9000),
            tmp_path,
        )
        assert config.detect.quiet_seconds == 3
        assert (config.web.telemetry_path, config.web.listen_address) == ("/m", ":9000")

    def test_changed_configuration_restarts(self, render: Renderer) -> None:
        """Another configuration gives other pods; the same gives the same."""

        def checksum(**values: Any) -> str:
            metadata = one(render(**values), "DaemonSet")["spec"]["template"]["metadata"]
            return str(metadata["annotations"]["checksum/config"])

        assert checksum() == checksum()
        assert checksum() != checksum(config={"detect": {"quiet_seconds": 3}})

    @pytest.mark.parametrize("vendor", NEIGHBOURS)
    def test_other_vendors(self, render: Renderer, tmp_path: Path, vendor: str) -> None:
        """On nodes of other vendors their own exporter is asked: nothing of NVIDIA, no right, no device."""
        (namespace, port), labels = NEIGHBOURS[vendor]
        exporter = {"namespace": namespace, "selector": {"app": "theirs"}}
        objects = render(gpu={"vendor": vendor, "exporter": exporter})
        check_promises(objects, neighbour=(namespace, port))
        assert gpu_labels(objects) == labels
        assert config_of(objects, tmp_path).gpu.backend == "prometheus"
        with pytest.raises(helm.HelmError, match="vendor's exporter"):
            render(gpu={"vendor": vendor})

    def test_gpu_backend(self, render: Renderer, tmp_path: Path) -> None:
        """The backend is the user's, and so is an exporter's URL, whose port the policy opens."""
        assert config_of(render(), tmp_path).gpu.backend == "auto"
        assert config_of(render(gpu={"vendor": "amd", "backend": "none"}), tmp_path).gpu.backend == "none"
        assert config_of(render(config={"gpu": {"backend": "none"}}), tmp_path).gpu.backend == "none"
        objects = render(gpu={"backend": "prometheus", "url": "http://dcgm.gpu.svc:9400/metrics"})
        gpu = config_of(objects, tmp_path).gpu
        assert (gpu.backend, gpu.url) == ("prometheus", "http://dcgm.gpu.svc:9400/metrics")
        assert one(objects, "NetworkPolicy")["spec"]["egress"][1]["ports"] == [
            {"port": 9400, "protocol": "TCP"}
        ]
        assert "affinity" not in pod(render(gpu={"vendor": "none"}))

    def test_nodes(self, render: Renderer) -> None:
        """Selector, affinity, tolerations, runtime class and priority are the user's."""
        spec = pod(
            render(nodeSelector={"pool": "h100"}, affinity={}, tolerations=[], runtimeClassName="nvidia",
                   priorityClass={"create": False, "name": "system-node-critical"}, hostPID=False)
        )  # fmt: skip
        assert spec["nodeSelector"] == {"pool": "h100"}
        assert "tolerations" not in spec
        assert (spec["runtimeClassName"], spec["priorityClassName"]) == ("nvidia", "system-node-critical")
        assert spec["hostPID"] is False

    def test_resources(self, render: Renderer) -> None:
        """Resources are the user's, one by one."""
        limits = container(render(resources={"limits": {"memory": "1Gi"}}))["resources"]
        assert limits["limits"] == {"memory": "1Gi"}
        assert limits["requests"]["cpu"] == "20m"

    def test_web_config(self, render: Renderer) -> None:
        """A Secret with the web configuration is mounted and named, and probes speak TLS."""
        objects = render(
            webConfig={"existingSecret": "web", "tls": True},
            monitor={"kind": "PodMonitor", "scheme": "https"},
        )
        check_probes(objects, "HTTPS")
        assert "--web.config.file=/etc/ckpt-exporter-web/web.yml" in container(objects)["args"]
        assert one(objects, "PodMonitor")["spec"]["podMetricsEndpoints"][0]["scheme"] == "https"

    def test_state(self, render: Renderer) -> None:
        """The history can outlive the pod."""
        state = next(
            v for v in pod(render(state={"hostPath": "/var/lib/ckpt"}))["volumes"] if v["name"] == "state"
        )
        assert state["hostPath"] == {"path": "/var/lib/ckpt", "type": "DirectoryOrCreate"}

    def test_arguments_and_environment(self, render: Renderer) -> None:
        """More arguments and variables come behind the chart's own; the log's level and form are values."""
        main = container(
            render(extraArgs=["--gpu.backend=none"], extraEnv=[{"name": "A", "value": "b"}], logLevel="debug")
        )
        assert main["args"][-1] == "--gpu.backend=none"
        assert "--log.level=debug" in main["args"]
        assert main["env"][-1] == {"name": "A", "value": "b"}
        parse_arguments(main["args"])


class TestMonitoring:
    @pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
    def test_monitor(self, render: Renderer, kind: str) -> None:
        """Either monitor finds its target, with the labels that an operator selects by."""
        extra = {"sourceLabels": ["x"], "targetLabel": "y"}
        objects = render(
            monitor={"kind": kind, "additionalLabels": {"release": "kps"}, "relabelings": [extra]}
        )
        found = one(objects, kind)
        assert found["metadata"]["labels"]["release"] == "kps"
        (endpoint,) = found["spec"].get("podMetricsEndpoints") or found["spec"]["endpoints"]
        assert (endpoint["port"], endpoint["interval"], endpoint["scrapeTimeout"]) == (
            "metrics",
            "15s",
            "10s",
        )
        assert [rule["targetLabel"] for rule in endpoint["relabelings"]] == ["instance", "y"]

        labels = one(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
        target = labels
        if kind == "ServiceMonitor":
            service = one(objects, "Service")
            assert service["spec"]["selector"].items() <= labels.items()
            assert service["spec"]["clusterIP"] == "None"
            target = service["metadata"]["labels"]
        assert found["spec"]["selector"]["matchLabels"].items() <= target.items()
        assert target[found["spec"]["jobLabel"]] == "ckpt-exporter"

    def test_rules(self, render: Renderer) -> None:
        """The rules are the files' own, templates of alerts untouched."""
        groups = one(render(prometheusRule={"enabled": True}), "PrometheusRule")["spec"]["groups"]
        assert groups == RULES["rules"] + RULES["alerts"]

    def test_disabled_alerts(self, render: Renderer) -> None:
        """An alert can be left out; one that does not exist is a mistake."""
        rule = one(render(prometheusRule={"enabled": True, "disabledAlerts": ["CkptA"]}), "PrometheusRule")
        assert [r.get("alert") for g in rule["spec"]["groups"] for r in g["rules"]] == [None, "CkptB"]
        with pytest.raises(Exception, match="there is no alert CkptZ"):
            render(prometheusRule={"enabled": True, "disabledAlerts": ["CkptZ"]})

    def test_dashboards(self, render: Renderer) -> None:
        """A dashboard is a ConfigMap with the file's own text, where and how the sidecar looks."""
        objects = render(
            dashboards={"enabled": True, "namespace": "grafana", "annotations": {"folder": "GPU"}}
        )
        (found,) = [o for o in objects if "grafana_dashboard" in o["metadata"]["labels"]]
        assert found["metadata"]["name"] == "ckpt-exporter-dashboard-bubble-cost"
        assert found["metadata"]["namespace"] == "grafana"
        assert found["metadata"]["annotations"] == {"folder": "GPU"}
        assert json.loads(found["data"]["ckpt-bubble_cost.json"]) == {"title": "{{ dir }} ${x}"}


class TestMistakes:
    @pytest.mark.parametrize(
        ("values", "told"),
        [
            ({"directories": []}, "nothing to watch"),
            ({"directories": [{"name": "x"}]}, "path"),
            ({"directories": [{"name": "x", "path": "relative"}]}, "pattern"),
            ({"directories": [{"name": "x", "path": "/*/ckpt"}]}, "cannot be mounted"),
            ({"volumes": {"enabled": True}}, "needs readAll"),
            ({"monitor": {"kind": "podmonitor"}}, "kind"),
            ({"resource": {}}, "resource"),
            ({"image": {"digest": "latest"}}, "digest"),
            ({"port": 0}, "port"),
        ],
    )
    def test_is_told(self, render: Renderer, values: dict[str, Any], told: str) -> None:
        """A wrong value is told before anything reaches the cluster."""
        with pytest.raises(Exception, match=told):
            render(values)


class TestSources:
    def test_every_value_is_described(self) -> None:
        """Schema and values have the same keys, each with a description, and templates use no other."""
        values = yaml.safe_load((CHART / "values.yaml").read_text())
        schema = json.loads((CHART / "values.schema.json").read_text())

        def compare(given: dict[str, Any], about: dict[str, Any]) -> None:
            assert set(given) == set(about["properties"]) - {"global"}
            for name, value in given.items():
                assert about["properties"][name]["description"].endswith(".")
                if "properties" in about["properties"][name]:
                    compare(value, about["properties"][name])

        compare(values, schema)
        used = {
            match
            for path in (CHART / "templates").iterdir()
            for match in re.findall(r"\.Values\.(\w+)", path.read_text())
        }
        assert used == set(values)

    def test_links(self) -> None:
        """The chart's rules and dashboards are links to the only copy."""
        links = {path.name: path.readlink() for path in (CHART / "files").iterdir()}
        assert {name: (CHART / "files" / link).resolve() for name, link in links.items()} == {
            "rules.yml": REPOSITORY / "deploy/prometheus/rules.yml",
            "alerts.yml": REPOSITORY / "deploy/prometheus/alerts.yml",
            "dashboards": REPOSITORY / "grafana/dashboards",
        }

    @pytest.mark.skipif(not HAS_SOURCES, reason="no rules or dashboards yet")
    def test_shipped(self) -> None:
        """The chart as it stands renders exactly the shipped rules and dashboards."""
        objects = Renderer(CHART)(prometheusRule={"enabled": True}, dashboards={"enabled": True})
        groups = [
            group
            for name in ("rules", "alerts")
            for group in yaml.safe_load((REPOSITORY / f"deploy/prometheus/{name}.yml").read_text())["groups"]
        ]
        assert one(objects, "PrometheusRule")["spec"]["groups"] == groups
        made = {
            k: v
            for o in objects
            if "grafana_dashboard" in o["metadata"]["labels"]
            for k, v in o["data"].items()
        }
        assert made == {
            file.name: file.read_text() for file in (REPOSITORY / "grafana/dashboards").glob("*.json")
        }

    @pytest.mark.skipif(not HAS_SOURCES, reason="no rules or dashboards yet")
    def test_package_holds_them(self, tmp_path: Path) -> None:
        """A packaged chart holds the files that the links lead to."""
        archive = helm.package(str(CHART), destination=str(tmp_path))
        chart = helm.Chart.load(str(archive))
        names = {file["name"] for file in chart.files}
        assert {"files/rules.yml", "files/alerts.yml"} <= names
        assert any(name.startswith("files/dashboards/") for name in names)

    def test_versions(self) -> None:
        """Chart and program carry one version."""
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
        assert chart["version"] == chart["appVersion"] == __version__
