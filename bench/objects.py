"""Kubernetes objects as a busy cluster has them, made by number: the same number gives the same object."""

from __future__ import annotations

import uuid
from typing import Any

from vpa_ippr.api.timestamps import format_time

Json = dict[str, Any]

NOW = 1_767_225_600.0
"""The moment of all measurements, in seconds since the epoch."""
DAY_SECONDS = 86_400.0
_NAMESPACES = 40
_NODES = 100
# Pods of a cluster are mostly text that we never read: with this much of it a pod has the usual 6 kB.
_ENV_VARIABLES = 14
_INJECTED = "injected by the mesh's webhook; " * 16


def namespace_of(workload: int) -> str:
    """The namespace of a workload, by its number."""
    return f"team-{workload % _NAMESPACES:02}"


def pod(number: int, workload: int, resources: Json) -> Json:
    """A running pod of a Deployment's ReplicaSet, two days old, whose spec has been carried out; about 6 kB as JSON."""
    name, started = f"app-{workload}", format_time(NOW - 2 * DAY_SECONDS)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-rs", "uid": _uid("rs", workload), "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-rs-{number:05}",
            "generateName": f"{name}-rs-",
            "namespace": namespace_of(workload),
            "uid": _uid("pod", number),
            "resourceVersion": str(1000 + number),
            "generation": 1,
            "creationTimestamp": started,
            "labels": {"app": name, "pod-template-hash": "5d4f8c7b96", "app.kubernetes.io/part-of": f"product-{workload % 50}"},
            "annotations": {"prometheus.io/scrape": "true", "mesh.example/status": _INJECTED},
            "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
            "managedFields": [_managed("kube-controller-manager", "", started), _managed("kubelet", "status", started)],
        },
        "spec": _spec(number, resources),
        "status": _status(number, resources, started),
    }


def _spec(number: int, resources: Json) -> Json:
    probe = {"httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 1}
    token = {"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
    container = {
        "name": "app",
        "image": f"registry.example/product/app:{number % 7}.2.1",
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [{"name": f"SETTING_{index:02}", "value": f"value-of-setting-{index}"} for index in range(_ENV_VARIABLES)],
        "resources": resources,
        "volumeMounts": [{"name": "config", "mountPath": "/etc/app"}, token],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    return {
        "volumes": [{"name": "config", "configMap": {"name": "app-config"}}, {"name": "kube-api-access", "emptyDir": {}}],
        "containers": [container],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "app",
        "nodeName": f"node-{number % _NODES}",
        "securityContext": {"runAsNonRoot": True, "fsGroup": 2000},
        "schedulerName": "default-scheduler",
        "tolerations": [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in ("not-ready", "unreachable")
        ],
    }


def _status(number: int, resources: Json, started: str) -> Json:
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "qosClass": "Burstable",
        "observedGeneration": 1,
        "startTime": started,
        "hostIP": "10.0.0.1",
        "podIP": f"10.1.{number // 250}.{number % 250}",
        "conditions": [{"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": started} for kind in kinds],
        "containerStatuses": [
            {
                "name": "app",
                "containerID": f"containerd://{_uid('container', number).replace('-', '') * 2}",
                "image": f"registry.example/product/app:{number % 7}.2.1",
                "imageID": f"registry.example/product/app@sha256:{_uid('image', number % 7).replace('-', '') * 2}",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": started}},
                "lastState": {},
                "resources": resources,
                "allocatedResources": resources["requests"],
            }
        ],
    }


def _managed(manager: str, subresource: str, at: str) -> Json:
    fields: Json = {
        f'k:{{"type":"{kind}"}}': {".": {}, "f:lastTransitionTime": {}, "f:status": {}, "f:type": {}} for kind in ("A", "B", "C", "D")
    }
    entry = {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": at, "fieldsType": "FieldsV1"}
    return {**entry, "fieldsV1": {"f:spec": fields, "f:status": {"f:conditions": fields}}, "subresource": subresource}


def _uid(kind: str, number: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind}-{number}"))
