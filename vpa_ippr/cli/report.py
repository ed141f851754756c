"""``vpa-ippr report``: current resources beside recommendations, from a cluster, from Prometheus alone, or from trace files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import click

from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.errors import EXIT_DONE, EXIT_PARTIAL
from vpa_ippr.cli import options
from vpa_ippr.cli.question import Question, answer, question_options
from vpa_ippr.cli.terminal import colour_wanted, terminal_width

if TYPE_CHECKING:
    from vpa_ippr.api.errors import QuantityError
    from vpa_ippr.api.series import Finding
    from vpa_ippr.cluster.kube import Kube
    from vpa_ippr.recommend.limit_ranges import NamespaceLimits
    from vpa_ippr.report.model import Report

FORMS = ("table", "json", "yaml", "csv")


@click.command()
@question_options
@options.cluster_options
@click.option("--format", "-f", "form", type=click.Choice(FORMS), default="table", show_default=True, help="How to print.")
def report(question: Question, kubeconfig: str | None, context: str | None, form: str) -> int:
    """Show what containers have and what they should have.

    With neither Prometheus nor traces the recommendations are those that stand in the cluster's VPAs.
    """
    if question.names_a_source:
        built, faults = _from_usage(question)
    else:
        built = _from_cluster(kubeconfig, context, question.namespaces)
        faults = built.failures
    click.echo(render(_without(faults, built) if form == "table" else built, form), nl=False)
    options.tell(faults)
    return EXIT_PARTIAL if built.failures else EXIT_DONE


def _without(faults: Sequence[Finding], built: Report) -> Report:
    """A table is for a person, who sees stderr as well: what is wrong is said once."""
    return replace(built, findings=tuple(finding for finding in built.findings if finding not in faults), failures=())


def render(built: Report, form: str) -> str:
    """The report in one of ``FORMS``."""
    from vpa_ippr.report import documents, table

    if form == "table":
        return table.render_table(built, width=terminal_width(), colour=colour_wanted())
    return {"json": documents.render_json, "yaml": documents.render_yaml, "csv": documents.render_csv}[form](built)


def _from_cluster(kubeconfig: str | None, context: str | None, namespaces: Sequence[str]) -> Report:
    from vpa_ippr.cluster.connection import connect
    from vpa_ippr.cluster.kube import Kube
    from vpa_ippr.cluster.rest import Rest

    clock, connection = SystemClock(), connect(kubeconfig, context)
    return from_cluster(Kube(Rest(connection), clock, "vpa-ippr-report"), clock.now(), f"the VPAs of {connection.base_url}", namespaces)


def from_cluster(kube: Kube, as_of: float, source: str, namespaces: Sequence[str] = ()) -> Report:
    """The report of what the VPAs of a cluster say, and of what becomes of it in their pods; ``source`` names the cluster."""
    from vpa_ippr.api.series import Finding, WorkloadRef
    from vpa_ippr.recommend.ownership import pod_workload
    from vpa_ippr.report.caps import caps_of
    from vpa_ippr.report.model import build_report
    from vpa_ippr.report.vpas import advice_of, current_of
    from vpa_ippr.resize.matching import index_vpas

    find_workload = cache(kube.find_workload)
    vpas = [vpa for vpa in kube.list_vpas() if not namespaces or vpa.metadata.namespace in namespaces]
    advice, without, unclear = advice_of(vpas)
    wanted = {item.workload.namespace for item in advice}
    pods = [pod for pod in kube.list_pods() if pod.metadata.namespace in wanted]
    workloads = {pod.key: pod_workload(pod, find_workload) or WorkloadRef(pod.metadata.namespace, "Pod", pod.metadata.name) for pod in pods}
    current, unreadable = current_of(pods, lambda pod: workloads[pod.key])
    served = index_vpas(vpas)
    caps = caps_of(
        ((workload, pod, served[workload]) for pod in pods if (workload := workloads[pod.key]) in served),
        _limits(kube, wanted),
    )
    left_out = [Finding("ObjectUnreadable", "cluster", 1, line) for line in kube.left_out]
    return build_report(
        caps.on(advice), current, as_of=as_of, source=source, profile="of each VPA",
        findings=without, failures=list(dict.fromkeys([*left_out, *unclear, *unreadable, *caps.failures])),
    )  # fmt: skip


def _limits(kube: Kube, namespaces: Collection[str]) -> dict[str, NamespaceLimits | QuantityError]:
    from vpa_ippr.recommend.limit_ranges import limits_by_namespace

    if not namespaces:
        return {}
    found = limits_by_namespace(kube.list_limit_ranges())
    return {namespace: limits for namespace, limits in found.items() if namespace in namespaces}


def _from_usage(question: Question) -> tuple[Report, Sequence[Finding]]:
    from vpa_ippr.report.model import build_report
    from vpa_ippr.report.recommendations import advice_from
    from vpa_ippr.report.usage import current_by_workload

    found = answer(question)
    current = {}
    if not question.traces:
        wanted = sorted({recommendation.workload.namespace for recommendation in found.recommendations})
        with question.prometheus.open(SystemClock()) as source:
            current = current_by_workload(source.resources(found.as_of, wanted), found.usage.owners)
    built = build_report(
        map(advice_from, found.recommendations), current, as_of=found.as_of, source=found.source, profile=question.profile,
        findings=found.usage.findings, failures=found.usage.failures,
    )  # fmt: skip
    return built, found.faults
