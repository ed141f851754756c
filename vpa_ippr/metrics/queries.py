"""The text of every query that is sent, and nothing else: no clock, no I/O.

Labels. cAdvisor names a container's series by namespace, pod and container; ``container=""`` is a pod or slice cgroup (and the pause
container under containerd), ``container="POD"`` the pause container elsewhere: both are left out. ``image!=""`` is not asked for:
the two selectors make it needless, and the kubelet's ``/metrics/resource`` carries the same metrics without that label.

Duplicates. Two jobs that scrape the same kubelet, highly available pairs, nested cgroup ids and the series of a dead container that
lives on after a restart all show one container more than once. Gauges take ``max by (namespace, pod, container)``; a CPU counter
takes its ``rate`` first, series by series, and then the same max. Nothing is ever summed. kube-state-metrics scraped twice or in
shards is folded by the same max.

Alignment. Range queries are evaluated on the multiples of the step (see ``grid``), and a point at ``t`` stands for the samples with
``t - step < t' <= t``. Memory takes ``max_over_time`` over exactly that stretch, so a peak between two points is never missed, and
where the data itself lies on the grid each point is one sample, unchanged. The range is written one millisecond short because
Prometheus before 3.0 counts a sample at the far end of a range in, which would show each peak twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import promql_parser

from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import EvidenceKind

CPU_METRIC = "container_cpu_usage_seconds_total"
MEMORY_METRIC = "container_memory_working_set_bytes"

# cAdvisor's names: the CFS counters are there only for a container with a CPU limit, pressure only where the kubelet and the kernel have
# PSI (beta in Kubernetes 1.34), the rest of memory's counters only under cgroup v2. Under v2 rss is ``anon``: shared memory is not in it.
EVIDENCE_METRICS: Mapping[EvidenceKind, tuple[str, ...]] = {
    EvidenceKind.CPU_THROTTLED: ("container_cpu_cfs_throttled_periods_total", "container_cpu_cfs_periods_total"),
    EvidenceKind.CPU_PRESSURE: ("container_pressure_cpu_waiting_seconds_total",),
    EvidenceKind.MEMORY_PRESSURE: ("container_pressure_memory_waiting_seconds_total",),
    EvidenceKind.RSS: ("container_memory_rss",),
    EvidenceKind.MAPPED_FILE: ("container_memory_mapped_file",),
    EvidenceKind.ACTIVE_FILE: ("container_memory_total_active_file_bytes",),
    EvidenceKind.FILE_REFAULTS: ("container_memory_workingset_refault_file_total",),
    EvidenceKind.RECLAIMED: ("container_memory_pgsteal_total",),
}

# At two samples a window rate() has nothing to spare for one failed scrape; four is what Prometheus' own rules of thumb use.
RATE_WINDOW_SCRAPES = 4

_RE2_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")
_ESCAPED = r"\\\g<0>"

_CONTAINER = "namespace,pod,container"
_CONTAINERS_ONLY = ('container!=""', 'container!="POD"')


@dataclass(frozen=True, slots=True)
class Scope:
    """What a query may see: one namespace, and the matchers that the user wants on every selector."""

    namespace: str
    matchers: tuple[str, ...] = ()

    def select(self, metric: str, *matchers: str) -> str:
        """A vector selector within the scope."""
        return _selector(metric, (f"namespace={quote(self.namespace)}", *matchers, *self.matchers))

    def select_containers(self, metric: str) -> str:
        """A vector selector of cAdvisor series that belong to real containers."""
        return self.select(metric, *_CONTAINERS_ONLY)


def quote(value: str) -> str:
    """A PromQL string literal."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def one_of(label: str, values: Iterable[str]) -> str:
    """A matcher for any of the values, each taken literally."""
    return f"{label}=~{quote('|'.join(_RE2_SPECIAL.sub(_ESCAPED, value) for value in values))}"


def duration(seconds: float) -> str:
    """A PromQL duration, to the millisecond."""
    milliseconds = round(seconds * 1000)
    whole, rest = divmod(milliseconds, 1000)
    return f"{milliseconds}ms" if rest else f"{whole}s"


def check_matcher(matcher: str) -> str:
    """The matcher itself, if it is one or more label matchers and nothing else.

    Raises:
        UsageError: the text cannot be read, or does more than match labels.
    """
    problem = 'expected label matchers such as job="kubelet"'
    try:
        parsed = promql_parser.parse(f"up{{{matcher}}}")
    except ValueError as error:
        raise UsageError(f"matcher {matcher!r}: {problem}") from error
    if (
        not isinstance(parsed, promql_parser.VectorSelector)
        or parsed.name != "up"
        or not parsed.matchers.matchers
        or parsed.matchers.or_matchers
        or parsed.offset is not None
        or parsed.at is not None
    ):
        raise UsageError(f"matcher {matcher!r}: {problem}")
    return matcher


def rate_window_seconds(step_seconds: float, scrape_interval_seconds: float) -> float:
    """The stretch that a CPU point averages over: the whole step, and never less than four scrapes."""
    return max(step_seconds, RATE_WINDOW_SCRAPES * scrape_interval_seconds)


def container_selector(matchers: tuple[str, ...]) -> str:
    """The containers of all namespaces, for listing the namespaces: one that has only CPU or only memory counts."""
    return _selector("", (f'__name__=~"{CPU_METRIC}|{MEMORY_METRIC}"', *_CONTAINERS_ONLY, 'namespace!=""', *matchers))


def cpu(scope: Scope, window_seconds: float) -> str:
    """Cores in use, averaged over the window."""
    return f"max by ({_CONTAINER}) ({_rate(scope, CPU_METRIC, window_seconds)})"


def memory(scope: Scope, step_seconds: float) -> str:
    """The largest working set since the point before, in bytes."""
    return _extreme("max", scope, MEMORY_METRIC, step_seconds)


def evidence(scope: Scope, kind: EvidenceKind, step_seconds: float, window_seconds: float) -> str:
    """One kind of evidence: counters as rates over the window, gauges as the extreme of the step that errs on the side of more need."""
    metric, *whole = EVIDENCE_METRICS[kind]
    if kind in (EvidenceKind.RSS, EvidenceKind.MAPPED_FILE):
        return _extreme("max", scope, metric, step_seconds)
    if kind is EvidenceKind.ACTIVE_FILE:
        return _extreme("min", scope, metric, step_seconds)
    rate = _rate(scope, metric, window_seconds)
    if whole:
        # Periods are counted only while the container has something to run: without any there is no share.
        rate = f"{rate} / ({_rate(scope, whole[0], window_seconds)} > 0)"
    return f"max by ({_CONTAINER}) ({rate})"


def instances(scope: Scope) -> str:
    """How many series show each container at an instant."""
    return f"count by ({_CONTAINER}) ({scope.select_containers(MEMORY_METRIC)})"


def scrape_counts(scope: Scope, window_seconds: float) -> str:
    """The most samples that any CPU counter of the namespace has in the window."""
    return f"max by (namespace) (count_over_time({scope.select_containers(CPU_METRIC)}[{duration(window_seconds)}]))"


def counter_resets(scope: Scope, window_seconds: float) -> str:
    """How often the CPU counter of a container fell within one series."""
    return f"max by ({_CONTAINER}) (resets({scope.select_containers(CPU_METRIC)}[{duration(window_seconds)}])) > 0"


def pod_owners(scope: Scope, window_seconds: float) -> str:
    """The controller of every pod seen in the window."""
    selected = scope.select("kube_pod_owner", 'owner_is_controller!="false"')
    return _last_seen("pod,owner_kind,owner_name", selected, window_seconds)


def replicaset_owners(scope: Scope, window_seconds: float) -> str:
    """The controller (Deployment, Rollout, ...) of every ReplicaSet seen in the window."""
    return _last_seen("replicaset,owner_kind,owner_name", scope.select("kube_replicaset_owner"), window_seconds)


def job_owners(scope: Scope, window_seconds: float) -> str:
    """The controller (CronJob) of every Job seen in the window."""
    return _last_seen("job_name,owner_kind,owner_name", scope.select("kube_job_owner"), window_seconds)


def pod_nodes(scope: Scope, window_seconds: float) -> str:
    """The node of every pod seen in the window."""
    return _last_seen("pod,node", scope.select("kube_pod_info", 'node!=""'), window_seconds)


def oom_killed(scope: Scope, window_seconds: float) -> str:
    """The containers whose last termination was an out-of-memory kill at any time in the window."""
    selected = scope.select("kube_pod_container_status_last_terminated_reason", 'reason="OOMKilled"')
    return f"max by ({_CONTAINER}) (max_over_time({selected}[{duration(window_seconds)}])) == 1"


def oom_reason(scope: Scope, pods: Iterable[str]) -> str:
    """1 while a container's last termination is an out-of-memory kill: a gauge that stays up until the next termination."""
    return _of_pods(scope, pods, "kube_pod_container_status_last_terminated_reason", 'reason="OOMKilled"')


def restarts(scope: Scope, pods: Iterable[str]) -> str:
    """How often each container has been restarted."""
    return _of_pods(scope, pods, "kube_pod_container_status_restarts_total")


def termination_times(scope: Scope, pods: Iterable[str]) -> str:
    """When each container was last terminated, in seconds since the epoch (kube-state-metrics >= 2.11)."""
    return _of_pods(scope, pods, "kube_pod_container_status_last_terminated_timestamp")


def memory_requests(scope: Scope, pods: Iterable[str]) -> str:
    """The memory request of each container, in bytes."""
    return _of_pods(scope, pods, "kube_pod_container_resource_requests", 'resource="memory"')


def memory_limits(scope: Scope, pods: Iterable[str]) -> str:
    """The memory limit of each container, in bytes."""
    return _of_pods(scope, pods, "kube_pod_container_resource_limits", 'resource="memory"')


def current_amounts(scope: Scope, kind: str) -> str:
    """What each container has of CPU and memory; ``kind`` is ``requests`` or ``limits``."""
    selected = scope.select(f"kube_pod_container_resource_{kind}", 'resource=~"cpu|memory"')
    return f"max by (pod,container,resource) ({selected})"


def _rate(scope: Scope, metric: str, window_seconds: float) -> str:
    return f"rate({scope.select_containers(metric)}[{duration(window_seconds)}])"


def _extreme(which: str, scope: Scope, metric: str, step_seconds: float) -> str:
    """The largest or smallest value since the point before, and the same of several series of one container."""
    stretch = duration(step_seconds - 0.001)
    return f"{which} by ({_CONTAINER}) ({which}_over_time({scope.select_containers(metric)}[{stretch}]))"


def _selector(metric: str, matchers: Iterable[str]) -> str:
    return f"{metric}{{{','.join(matchers)}}}"


def _last_seen(labels: str, selected: str, window_seconds: float) -> str:
    return f"max by ({labels}) (last_over_time({selected}[{duration(window_seconds)}]))"


def _of_pods(scope: Scope, pods: Iterable[str], metric: str, *matchers: str) -> str:
    return f"max by ({_CONTAINER}) ({scope.select(metric, one_of('pod', pods), *matchers)})"
