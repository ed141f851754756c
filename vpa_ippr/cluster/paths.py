"""URL paths of the Kubernetes API. Every name that comes from outside is quoted, so that none can lead elsewhere."""

from __future__ import annotations

from urllib.parse import quote

from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import SHRINK_API_VERSION, VPA_API_VERSION

PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
VPAS = f"/apis/{VPA_API_VERSION}/verticalpodautoscalers"
CHECKPOINTS = f"/apis/{VPA_API_VERSION}/verticalpodautoscalercheckpoints"
SHRINKS = f"/apis/{SHRINK_API_VERSION}/memoryshrinks"


def collection(api_version: str, namespace: str, plural: str) -> str:
    """All objects of a kind in one namespace."""
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    return f"{root}/namespaces/{quote(namespace, safe='')}/{plural}"


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
