"""URL paths of the Kubernetes API. Every name that comes from outside is quoted, so that none can lead elsewhere."""

from __future__ import annotations

from urllib.parse import quote

from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import NODE_MEMORY_API_VERSION, SHRINK_API_VERSION, VPA_API_VERSION

PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
LIMIT_RANGES = "/api/v1/limitranges"
QUOTAS = "/api/v1/resourcequotas"
PDBS = "/apis/policy/v1/poddisruptionbudgets"
HPAS = "/apis/autoscaling/v2/horizontalpodautoscalers"
NAMESPACES = "/api/v1/namespaces"
VPAS = f"/apis/{VPA_API_VERSION}/verticalpodautoscalers"
CHECKPOINTS = f"/apis/{VPA_API_VERSION}/verticalpodautoscalercheckpoints"
SHRINKS = f"/apis/{SHRINK_API_VERSION}/memoryshrinks"
NODE_MEMORIES = f"/apis/{NODE_MEMORY_API_VERSION}/nodememories"


def collection(api_version: str, namespace: str, plural: str) -> str:
    """All objects of a kind in one namespace."""
    return f"{api_root(api_version)}/namespaces/{quote(namespace, safe='')}/{quote(plural, safe='')}"


def api_root(api_version: str) -> str:
    """Where an API group and version is served; an apiVersion may come from an object that somebody else wrote."""
    group, separator, version = api_version.partition("/")
    if not separator:
        return f"/api/{quote(group, safe='')}"
    return f"/apis/{quote(group, safe='')}/{quote(version, safe='')}"


def named(api_version: str, key: ObjectKey, plural: str, subresource: str = "") -> str:
    """One object, or a subresource of it."""
    path = f"{collection(api_version, key.namespace, plural)}/{quote(key.name, safe='')}"
    return f"{path}/{subresource}" if subresource else path


def pod(key: ObjectKey, subresource: str = "") -> str:
    """One pod."""
    return named("v1", key, "pods", subresource)


def vpa(key: ObjectKey, subresource: str = "") -> str:
    """One VerticalPodAutoscaler."""
    return named(VPA_API_VERSION, key, "verticalpodautoscalers", subresource)


def checkpoint(key: ObjectKey) -> str:
    """One checkpoint."""
    return named(VPA_API_VERSION, key, "verticalpodautoscalercheckpoints")


def shrink(key: ObjectKey, subresource: str = "") -> str:
    """One MemoryShrink."""
    return named(SHRINK_API_VERSION, key, "memoryshrinks", subresource)


def node(name: str) -> str:
    """One node."""
    return f"{NODES}/{quote(name, safe='')}"


def node_memory(node_name: str, subresource: str = "") -> str:
    """The NodeMemory of a node."""
    path = f"{NODE_MEMORIES}/{quote(node_name, safe='')}"
    return f"{path}/{subresource}" if subresource else path
