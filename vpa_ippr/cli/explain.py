"""``vpa-ippr explain``: what was recommended for a workload, what was done to each of its pods, what comes next, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from vpa_ippr.api.errors import EXIT_DONE, UsageError
from vpa_ippr.cli import options
from vpa_ippr.cli.server_rules import server_rules
from vpa_ippr.cli.updater_options import admission_option, settings_options

if TYPE_CHECKING:
    from vpa_ippr.api.pod import Pod
    from vpa_ippr.api.vpa import Vpa
    from vpa_ippr.recommend.ownership import FindWorkload
    from vpa_ippr.resize.settings import Settings
    from vpa_ippr.resize.world import World

_PARTS = 3
_VPA_KINDS = ("verticalpodautoscaler", "vpa")


@click.command()
@click.argument("subject", metavar="NAMESPACE/KIND/NAME")
@options.cluster_options
@options.clock_options
@settings_options
@admission_option
@click.option("--format", "-f", "form", type=click.Choice(("text", "json")), default="text", show_default=True, help="How to print.")
def explain(
    subject: str,
    kubeconfig: str | None,
    context: str | None,
    clock_url: str | None,
    settings: Callable[[], Settings],
    admission_namespaces: tuple[str, ...],
    form: str,
) -> int:
    """Tell the story of one workload, such as shop/Deployment/web; KIND may also be Pod or VPA. Nothing is changed.

    Give the settings that the updater runs with, where they are not the defaults.
    """
    from vpa_ippr.cluster.connection import connect
    from vpa_ippr.cluster.kube import Kube
    from vpa_ippr.cluster.rest import Rest
    from vpa_ippr.report.trail import Story, render_json, render_text
    from vpa_ippr.resize.evicting import ask_admission
    from vpa_ippr.resize.relief import pleas_of
    from vpa_ippr.resize.trail import trails
    from vpa_ippr.resize.world import read_world

    namespace, kind, name = _parse(subject)
    clock = options.make_clock(clock_url, "explain")
    rest = Rest(connect(kubeconfig, context))
    kube = Kube(rest, clock, "vpa-ippr-explain", admission_namespaces)
    world = read_world(kube)
    wanted = _pods_of(world, namespace, kind, name, kube.find_workload)
    pleas = list(pleas_of(kube.list_node_memories()))
    found = trails(world, wanted, server_rules(rest), settings(), clock.now(), ask_admission(kube), pleas)
    vpas = _vpas_about(world, namespace, kind, name, [trail.vpa for trail in found if trail.vpa is not None])
    if not found and not vpas:
        raise UsageError(
            f"{subject}: no pod and no VerticalPodAutoscaler of it was found; check namespace, kind and name", reason="NotFound"
        )
    story = Story(subject, vpas, found)
    click.echo(render_text(story) if form == "text" else render_json(story), nl=False)
    return EXIT_DONE


def _parse(subject: str) -> tuple[str, str, str]:
    parts = subject.split("/")
    if len(parts) != _PARTS or not all(parts):
        raise UsageError(f"{subject!r} names no workload: give NAMESPACE/KIND/NAME, such as shop/Deployment/web", reason="BadSubject")
    namespace, kind, name = parts
    return namespace, kind.lower(), name


def _pods_of(world: World, namespace: str, kind: str, name: str, find: FindWorkload) -> Callable[[Pod], bool]:
    """Whether a pod is, or belongs to, what was asked about."""
    from vpa_ippr.recommend.ownership import pod_workload

    def is_wanted(pod: Pod) -> bool:
        if pod.metadata.namespace != namespace:
            return False
        if kind == "pod":
            return pod.metadata.name == name
        vpa = world.vpa_of.get(pod.key)
        if vpa is not None:
            return _is_about(vpa, namespace, kind, name)
        owner = pod_workload(pod, find) if kind not in _VPA_KINDS else None
        return owner is not None and (owner.kind.lower(), owner.name) == (kind, name)

    return is_wanted


def _is_about(vpa: Vpa, namespace: str, kind: str, name: str) -> bool:
    if vpa.metadata.namespace != namespace:
        return False
    if kind in _VPA_KINDS:
        return vpa.metadata.name == name
    target = vpa.spec.target_ref
    return target is not None and (target.kind.lower(), target.name) == (kind, name)


def _vpas_about(world: World, namespace: str, kind: str, name: str, of_pods: Iterable[Vpa]) -> list[Vpa]:
    """The VPAs of the pods, and those that are about the subject while it has no pods."""
    keys = {vpa.key for vpa in of_pods}
    return [vpa for vpa in world.vpas if vpa.key in keys or _is_about(vpa, namespace, kind, name)]
