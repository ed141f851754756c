"""A fleet as objects of a cluster, made and read with the official client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config

from support.fleet import CONTAINER, NODE, Fleet, Workload


def create_in_cluster(fleet: Fleet, kubeconfig: Path, crds: Path) -> None:
    """The CustomResourceDefinitions, namespaces, controllers, running pods and a VPA for each workload."""
    with config.new_client_from_config(str(kubeconfig)) as api:
        extensions, core = client.ApiextensionsV1Api(api), client.CoreV1Api(api)
        for path in sorted(crds.glob("*.yaml")):
            extensions.create_custom_resource_definition(yaml.safe_load(path.read_text()))
        for namespace in sorted({workload.namespace for workload in fleet.workloads}):
            core.create_namespace({"metadata": {"name": namespace}})
        for workload in fleet.workloads:
            _create(workload, core, client.AppsV1Api(api), client.CustomObjectsApi(api))


def _create(workload: Workload, core: Any, apps: Any, custom: Any) -> None:
    labels = {"app": workload.name}
    amounts = {
        "requests": {"cpu": f"{workload.cpu_request_millicores}m", "memory": str(workload.memory_request_bytes)},
        "limits": {"memory": str(workload.memory_limit_bytes)},
    }
    if workload.cpu_limit_millicores is not None:
        amounts["limits"]["cpu"] = f"{workload.cpu_limit_millicores}m"
    container = {"name": CONTAINER, "image": "registry.example/app:1", "resources": amounts}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": len(workload.running), "selector": {"matchLabels": labels}, "template": template}
    if workload.kind == "Deployment":
        top = apps.create_namespaced_deployment(workload.namespace, {"metadata": {"name": workload.name}, "spec": spec})
        metadata = {"name": workload.replicaset, "labels": labels, "ownerReferences": [_owned_by("Deployment", top)]}
        owner = _owned_by("ReplicaSet", apps.create_namespaced_replica_set(workload.namespace, {"metadata": metadata, "spec": spec}))
    else:
        body = {"metadata": {"name": workload.name}, "spec": {**spec, "serviceName": workload.name}}
        owner = _owned_by("StatefulSet", apps.create_namespaced_stateful_set(workload.namespace, body))
    for pod in workload.running:
        metadata = {"name": pod.name, "labels": labels, "ownerReferences": [owner]}
        core.create_namespaced_pod(workload.namespace, {"metadata": metadata, "spec": {**template["spec"], "nodeName": NODE}})
    vpa = {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": workload.name},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": workload.kind, "name": workload.name},
            "updatePolicy": {"updateMode": "Off"},
            "recommenders": [{"name": "vpa-ippr"}],
        },
    }
    custom.create_namespaced_custom_object("autoscaling.k8s.io", "v1", workload.namespace, "verticalpodautoscalers", vpa)


def _owned_by(kind: str, owner: Any) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": kind, "name": owner.metadata.name, "uid": owner.metadata.uid, "controller": True}


def list_vpas(kubeconfig: Path) -> list[dict[str, Any]]:
    """Every VPA as the API server has it."""
    with config.new_client_from_config(str(kubeconfig)) as api:
        listed = client.CustomObjectsApi(api).list_cluster_custom_object("autoscaling.k8s.io", "v1", "verticalpodautoscalers")
    return listed["items"]
