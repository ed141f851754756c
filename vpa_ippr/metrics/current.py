"""What containers ask for now, according to kube-state-metrics: for reports that have Prometheus and no cluster."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from vpa_ippr.api.resources import Amounts, ContainerResources, Resource
from vpa_ippr.api.series import ContainerRef
from vpa_ippr.metrics.decode import Row

_Known = dict[tuple[str, str], dict[Resource, int]]


def current_resources(namespace: str, requests: Iterable[Row], limits: Iterable[Row]) -> Mapping[ContainerRef, ContainerResources]:
    """Requests and limits of each container of a namespace, from instant answers in cores and bytes."""
    asked, allowed = _by_container(requests), _by_container(limits)
    return {
        ContainerRef(namespace, pod, container): ContainerResources(
            _amounts(asked[pod, container]) if (pod, container) in asked else Amounts(),
            _amounts(allowed[pod, container]) if (pod, container) in allowed else Amounts(),
        )
        for pod, container in sorted({*asked, *allowed})
    }


def _by_container(rows: Iterable[Row]) -> _Known:
    found: _Known = defaultdict(dict)
    for row in rows:
        value = float(row.values[-1]) if row.values.size else math.nan
        labels = row.labels
        if not (math.isfinite(value) and value >= 0 and labels.get("resource") in tuple(Resource)):
            continue
        resource = Resource(labels["resource"])
        scale = 1000 if resource is Resource.CPU else 1
        # A quantity such as 0.1 comes back from its float a hair above or below: whole units are what was meant.
        found[labels.get("pod", ""), labels.get("container", "")][resource] = round(value * scale)
    return dict(found)


def _amounts(known: Mapping[Resource, int]) -> Amounts:
    return Amounts(known.get(Resource.CPU), known.get(Resource.MEMORY))
