"""Which resources are served: a descriptor for each, and the registry that custom resources join and leave."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from vpa_ippr.sandbox.status import no_such_resource, qualified

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of one served version.

    ``has_generation``: whether ``metadata.generation`` counts changes of the spec (Kubernetes does so for some types only).
    ``storage``: the resource under whose name the objects are kept, when two API groups share them (events).
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    subresources: frozenset[str] = frozenset()
    has_generation: bool = False
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    singular: str = ""
    verbs: tuple[str, ...] = ALL_VERBS
    custom: bool = False
    storage: str = ""

    @property
    def key(self) -> str:
        """``pods`` or ``deployments.apps``."""
        return qualified(self.plural, self.group)

    @property
    def storage_key(self) -> str:
        """The key under which the objects are kept."""
        return self.storage or self.key

    @property
    def api_version(self) -> str:
        """``v1`` or ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular_name(self) -> str:
        """The name in discovery."""
        return self.singular or self.kind.lower()

    @property
    def has_status(self) -> bool:
        """True when the status is written through ``/status`` alone."""
        return "status" in self.subresources


_STATUS = frozenset({"status"})
_SCALED = frozenset({"status", "scale"})
_REVIEW = ("create",)
_RBAC = "rbac.authorization.k8s.io"

BUILT_IN: tuple[Resource, ...] = (
    Resource(
        "",
        "v1",
        "pods",
        "Pod",
        subresources=frozenset({"status", "resize", "eviction", "binding", "log"}),
        has_generation=True,
        short_names=("po",),
        categories=("all",),
    ),
    Resource("", "v1", "namespaces", "Namespace", namespaced=False, subresources=_STATUS, short_names=("ns",)),
    Resource("", "v1", "nodes", "Node", namespaced=False, subresources=_STATUS, short_names=("no",)),
    Resource("", "v1", "events", "Event", short_names=("ev",)),
    Resource("", "v1", "configmaps", "ConfigMap", short_names=("cm",)),
    Resource("", "v1", "secrets", "Secret"),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", short_names=("sa",), subresources=frozenset({"token"})),
    Resource("", "v1", "services", "Service", subresources=_STATUS, short_names=("svc",), categories=("all",)),
    Resource("", "v1", "limitranges", "LimitRange", short_names=("limits",)),
    Resource("", "v1", "resourcequotas", "ResourceQuota", subresources=_STATUS, short_names=("quota",)),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", subresources=_STATUS, short_names=("pvc",)),
    Resource(
        "apps",
        "v1",
        "deployments",
        "Deployment",
        subresources=_SCALED,
        has_generation=True,
        short_names=("deploy",),
        categories=("all",),
    ),
    Resource(
        "apps",
        "v1",
        "replicasets",
        "ReplicaSet",
        subresources=_SCALED,
        has_generation=True,
        short_names=("rs",),
        categories=("all",),
    ),
    Resource(
        "apps",
        "v1",
        "statefulsets",
        "StatefulSet",
        subresources=_SCALED,
        has_generation=True,
        short_names=("sts",),
        categories=("all",),
    ),
    Resource("apps", "v1", "daemonsets", "DaemonSet", subresources=_STATUS, has_generation=True, short_names=("ds",), categories=("all",)),
    Resource("batch", "v1", "jobs", "Job", subresources=_STATUS, has_generation=True, categories=("all",)),
    Resource("batch", "v1", "cronjobs", "CronJob", subresources=_STATUS, has_generation=True, short_names=("cj",), categories=("all",)),
    Resource(
        "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", subresources=_STATUS, has_generation=True, short_names=("pdb",)
    ),
    Resource("coordination.k8s.io", "v1", "leases", "Lease"),
    Resource("events.k8s.io", "v1", "events", "Event", short_names=("ev",), storage="events"),
    Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False, short_names=("pc",)),
    Resource(_RBAC, "v1", "roles", "Role"),
    Resource(_RBAC, "v1", "rolebindings", "RoleBinding"),
    Resource(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
    Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Resource(
        "autoscaling",
        "v2",
        "horizontalpodautoscalers",
        "HorizontalPodAutoscaler",
        subresources=_STATUS,
        short_names=("hpa",),
        categories=("all",),
    ),
    Resource(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        namespaced=False,
        subresources=_STATUS,
        has_generation=True,
        short_names=("crd", "crds"),
        categories=("api-extensions",),
    ),
    Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False, verbs=_REVIEW),
    Resource("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", namespaced=False, verbs=_REVIEW),
    Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False, verbs=_REVIEW),
    Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False, verbs=_REVIEW),
    Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False, verbs=_REVIEW),
)


@dataclass(slots=True)
class Registry:
    """The served resources; safe to use from several threads."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _by_path: dict[tuple[str, str, str], Resource] = field(default_factory=dict)
    _by_key: dict[str, Resource] = field(default_factory=dict)

    def add(self, resource: Resource) -> None:
        """Serve ``resource``, replacing an earlier descriptor of the same path."""
        with self._lock:
            self._by_path = {**self._by_path, (resource.group, resource.version, resource.plural): resource}
            self._by_key = {**self._by_key, resource.key: resource}

    def remove(self, group: str, plural: str) -> None:
        """Stop serving all versions of a resource."""
        with self._lock:
            self._by_path = {path: r for path, r in self._by_path.items() if (r.group, r.plural) != (group, plural)}
            self._by_key.pop(qualified(plural, group), None)

    def at(self, group: str, version: str, plural: str) -> Resource | None:
        """The resource behind a URL, or None."""
        return self._by_path.get((group, version, plural))

    def named(self, resource: Resource | str) -> Resource:
        """The resource of a key such as ``deployments.apps``; StatusError 404 when it is not served."""
        if isinstance(resource, Resource):
            return resource
        found = self._by_key.get(resource)
        if found is None:
            raise no_such_resource()
        return found

    def all(self) -> list[Resource]:
        """Every served resource of every version, in the order of registration."""
        return list(self._by_path.values())

    def serves_group_version(self, group: str, version: str) -> bool:
        """True when at least one resource is served there."""
        return any((g, v) == (group, version) for g, v, _ in self._by_path)


def built_in_registry() -> Registry:
    """A registry of the built-in resources."""
    registry = Registry()
    for resource in BUILT_IN:
        registry.add(resource)
    return registry
