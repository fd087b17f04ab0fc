"""What the tests of the kustomization and of the chart ask of the same objects."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import yaml

# The oldest and the newest version that the manifests are checked against.
VERSIONS = ("1.29.0", "1.37.0")

Object = dict[str, Any]


def check_schemas(objects: list[Object]) -> None:
    """Hold every object of Kubernetes itself against its strict schema in each version."""
    for thing in objects:
        if not thing["apiVersion"].startswith("monitoring.coreos.com/"):
            _check_schema(json.dumps(thing, sort_keys=True))


@cache
def _check_schema(text: str) -> None:
    """Check one object, each once: most of them are the same in every test."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is missing")
    for version in VERSIONS:
        validate.validate(json.loads(text), version, strict=True)


def one(objects: list[Object], kind: str) -> Object:
    """Return the only object of this kind."""
    (found,) = [thing for thing in objects if thing["kind"] == kind]
    return found


def pod(objects: list[Object]) -> Object:
    """Return the pod's specification."""
    spec: Object = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    return spec


def container(objects: list[Object]) -> Object:
    """Return its only container."""
    (found,) = pod(objects)["containers"]
    assert isinstance(found, dict)
    return found


def check_promises(
    objects: list[Object], *, read_all: bool = False, neighbour: tuple[str, int] | None = None
) -> None:
    """Check what a security team is promised, and that nothing takes from the training.

    ``neighbour``: namespace and port of another vendor's exporter that is asked instead of NVIDIA's driver.
    """
    spec, main = pod(objects), container(objects)
    assert spec["automountServiceAccountToken"] is False
    assert one(objects, "ServiceAccount")["automountServiceAccountToken"] is False
    assert (spec["hostNetwork"], spec["hostIPC"]) == (False, False)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    user = (0, 0, False) if read_all else (65532, 65532, True)
    context = spec["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["runAsNonRoot"]) == user

    own = main["securityContext"]
    assert (own["allowPrivilegeEscalation"], own["privileged"]) == (False, False)
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"]["drop"] == ["ALL"]
    assert own["capabilities"].get("add", []) == (["DAC_READ_SEARCH", "SYS_PTRACE"] if read_all else [])

    # No GPU is claimed, and no training is evicted or throttles the sampler.
    assert not [key for kind in main["resources"].values() for key in kind if key not in ("cpu", "memory")]
    assert "cpu" not in main["resources"]["limits"]
    environment = {entry["name"]: entry["value"] for entry in main.get("env", ())}
    if neighbour is None:
        assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
        assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    else:
        assert environment == {}
        check_neighbour(objects, *neighbour)
    priority = one(objects, "PriorityClass")
    assert priority["preemptionPolicy"] == "Never"
    assert spec["priorityClassName"] == priority["metadata"]["name"]
    assert one(objects, "DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "10%"

    check_mounts(spec, main)
    check_network(objects, closed=neighbour is None)


def check_neighbour(objects: list[Object], namespace: str, port: int) -> None:
    """Check that a vendor's exporter is asked on the pod's own node alone, and may be."""
    service = one(objects, "Service")
    assert service["metadata"]["namespace"] == namespace
    assert service["spec"]["internalTrafficPolicy"] == "Local"
    assert service["spec"]["selector"]
    assert [entry["port"] for entry in service["spec"]["ports"]] == [port]
    (text,) = [
        o["data"]["config.yml"] for o in objects if o["kind"] == "ConfigMap" and "config.yml" in o["data"]
    ]
    assert yaml.safe_load(text)["gpu"] == {
        "backend": "prometheus",
        "url": f"http://{service['metadata']['name']}.{namespace}.svc:{port}/metrics",
    }
    names, exporter = one(objects, "NetworkPolicy")["spec"]["egress"]
    assert {(entry["port"], entry["protocol"]) for entry in names["ports"]} == {(53, "UDP"), (53, "TCP")}
    assert exporter["ports"] == [{"port": port, "protocol": "TCP"}]
    (where,) = exporter["to"]
    assert where["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": namespace}


def check_mounts(spec: Object, main: Object) -> None:
    """Every host path is mounted read-only at its own path, and follows later mounts."""
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for mount in main["volumeMounts"]:
        volume = volumes.pop(mount["name"])
        if "hostPath" in volume:
            assert mount["mountPath"] == volume["hostPath"]["path"]
            assert mount["readOnly"] is True
            assert mount["mountPropagation"] == "HostToContainer"
        elif "emptyDir" not in volume:
            assert mount["readOnly"] is True
    assert not volumes, "volumes that are not mounted"


def check_network(objects: list[Object], *, closed: bool = True) -> None:
    """Check that the policy is for these pods alone, lets scrapes in and, if ``closed``, nothing out."""
    policy, daemon = one(objects, "NetworkPolicy")["spec"], one(objects, "DaemonSet")["spec"]
    labels = daemon["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert daemon["selector"]["matchLabels"].items() <= labels.items()
    assert bool(policy["egress"]) is not closed
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    assert [rule["ports"] for rule in policy["ingress"]] == [[{"port": "metrics", "protocol": "TCP"}]]


def check_probes(objects: list[Object], scheme: str = "HTTP") -> None:
    """Probes ask for the two health paths, at the port where metrics are."""
    main = container(objects)
    (port,) = main["ports"]
    assert port["name"] == "metrics"
    for probe, path in (
        ("startupProbe", "/-/healthy"),
        ("livenessProbe", "/-/healthy"),
        ("readinessProbe", "/-/ready"),
    ):
        asked = main[probe]["httpGet"]
        assert (asked["path"], asked["port"]) == (path, "metrics")
        assert asked.get("scheme", "HTTP") == scheme


def gpu_labels(objects: list[Object]) -> set[str]:
    """Return the labels of which a node needs one."""
    terms = pod(objects)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return {rule["key"] for term in terms["nodeSelectorTerms"] for rule in term["matchExpressions"]}


# Vendors that are asked through their own exporter: its namespace and port, and labels of nodes.
NEIGHBOURS = {
    "ascend": (
        ("npu-exporter", 8082),
        {"feature.node.kubernetes.io/pci-1200_19e5.present", "accelerator-type"},
    ),
    "amd": (
        ("kube-amd-gpu", 5000),
        {
            "feature.node.kubernetes.io/amd-gpu",
            "feature.node.kubernetes.io/pci-1200_1002.present",
            "feature.node.kubernetes.io/pci-0380_1002.present",
        },
    ),
}
GPU_LABELS = {
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "cloud.google.com/gke-accelerator",
}
