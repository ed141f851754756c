"""``vpa-ippr actuator shrink``: one cgroup, by a person's hand, without a cluster."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vpa_ippr.api.errors import EXIT_DONE, EXIT_FAILED, EXIT_PARTIAL, ActuatorError, UsageError
from vpa_ippr.cli import options
from vpa_ippr.cli.actuator_options import (
    STANDALONE,
    Place,
    cgroup_root_option,
    limit_text,
    mib,
    node_cgroups,
    node_policy,
    output_option,
    proc_option,
    restorers,
    stoppable,
)

if TYPE_CHECKING:
    from vpa_ippr.actuator.cgroup import Cgroup
    from vpa_ippr.actuator.cgroup_files import CgroupFiles
    from vpa_ippr.actuator.journal import Journal
    from vpa_ippr.actuator.node_cgroups import NodeCgroups
    from vpa_ippr.actuator.policy import Policy
    from vpa_ippr.actuator.standalone import Request, Result
    from vpa_ippr.actuator.state import ShrinkState

_DURATION = options.Duration()


@click.command()
@click.option("--cgroup", "given", required=True, metavar="PATH", help="The cgroup, such as system.slice/db.service.")
@click.option("--target", required=True, type=options.Amount("memory"), help="What memory.max is to become, such as 300Mi.")
@click.option("--deadline", type=_DURATION, default="15m", show_default=True, help="Everything is put back when this has passed.")
@click.option(
    "--commit",
    type=click.Choice(("none", "direct")),
    default="none",
    show_default=True,
    help="direct sets memory.max; none holds usage below the target until somebody else does.",
)
@click.option("--dry-run", is_flag=True, help="Observe, say what would be done, and write nothing.")
@click.option("--observe", type=_DURATION, help="How long to look before touching anything.  [default: 60s]")
@click.option("--settle", type=_DURATION, help="How long to look after each step.  [default: 5s]")
@click.option("--stability", type=_DURATION, help="How long the goal must be kept before the limit follows.  [default: 60s]")
@click.option("--step-percent", type=click.FloatRange(0.1, 10), help="The largest step, in percent of usage.  [default: 3]")
@click.option("--probation", type=_DURATION, default="60s", show_default=True, help="How long to watch for harm under the new limit.")
@click.option("--freeze/--no-freeze", default=True, show_default=True, help="Stop the processes for the 10 ms in which memory.max is set.")
@cgroup_root_option
@proc_option
@click.option("--state-dir", type=click.Path(path_type=Path), default=STANDALONE, show_default=True, help="Where the journal is kept.")
@output_option
def shrink(
    given: str,
    target: int,
    deadline: float,
    commit: str,
    dry_run: bool,
    freeze: bool,
    cgroup_root: Path,
    proc: Path,
    state_dir: Path,
    form: str,
    **overrides: float | None,
) -> int:
    """Bring the memory of one cgroup below a lower limit without hurting its processes, and put everything back if that cannot be.

    Interrupted, it puts everything back; killed, it leaves a journal for `vpa-ippr actuator restore`. Exit code: 0 done, 1 not done and put
    back, 3 held below the target up to the deadline, but nobody set the limit.
    """
    from vpa_ippr.actuator.features import probe
    from vpa_ippr.actuator.standalone import Request

    probe(cgroup_root, proc).require()
    place = Place(cgroup_root, proc, state_dir)
    policy = _policy(overrides)
    with node_cgroups(cgroup_root, proc) as cgroups:
        path = cgroups.below_root(given)
        cgroup = cgroups.open(path)
        if cgroup is None:
            raise UsageError(f"there is no cgroup {cgroup_root / path} (a symbolic link is not followed)", reason="CgroupNotFound")
        if commit == "direct":
            _refuse_kubernetes(cgroup_root, path)
        request = Request(path=path, target_bytes=target, deadline_seconds=deadline, policy=policy, is_strict=freeze)
        progress = _Progress(path, policy)
        if dry_run:
            return _rehearse(request, cgroup, progress, form)
        files = cgroups.files(path) if commit == "direct" else None
        try:
            return _run(request, cgroup, files, cgroups, place, progress, form)
        finally:
            if files is not None:
                files.close()


def _policy(overrides: dict[str, float | None]) -> Policy:
    policy = node_policy()
    fields: dict[str, Any] = {}
    for name in ("observe", "settle", "stability", "probation"):
        if overrides[name] is not None:
            fields[f"{name}_seconds"] = overrides[name]
    fields["observe_max_seconds"] = max(policy.observe_max_seconds, fields.get("observe_seconds", 0.0))
    fields["tick_seconds"] = min(policy.tick_seconds, fields.get("settle_seconds", policy.settle_seconds))
    percent = overrides["step_percent"]
    if percent is not None:
        ratio = percent / 100
        fields |= {
            "step_max_ratio": ratio,
            "step_min_ratio": min(policy.step_min_ratio, ratio),
            "probe_ratio": min(policy.probe_ratio, ratio),
        }
    return replace(policy, **fields)


def _refuse_kubernetes(root: Path, path: str) -> None:
    from vpa_ippr.actuator.locate import is_kubernetes

    if is_kubernetes(tuple((root.resolve() / path).parts)):
        message = (
            f"{path} belongs to Kubernetes: the kubelet would undo a limit that is set here, and its spec would not know of it. "
            "Use --commit none, and PATCH the pod's /resize while this holds usage below the target"
        )
        raise UsageError(message, reason="BelongsToKubernetes")


def _run(
    request: Request,
    cgroup: Cgroup,
    files: CgroupFiles | None,
    cgroups: NodeCgroups,
    place: Place,
    progress: _Progress,
    form: str,
) -> int:
    from vpa_ippr.actuator import standalone
    from vpa_ippr.actuator.commit import LimitFiles
    from vpa_ippr.actuator.features import honours_nonblocking
    from vpa_ippr.actuator.journal import open_journal, read_boot_id

    with stoppable() as (clock, stop):
        journal = open_journal(place.state_dir, read_boot_id(place.proc), clock)
        try:
            _settle_left_over(journal, cgroup, cgroups, place)
            limit = None
            if files is not None:
                limit = LimitFiles(files, nonblocking=honours_nonblocking(place.cgroup_root, place.state_dir) is True)
            began = clock.now()
            result = standalone.run(request, cgroup, limit, journal, clock, stop, progress.show)
            seconds = clock.now() - began
        finally:
            journal.close()
    progress.end()
    _print(_verdict(request, result, seconds), form)
    if result.is_left_over:
        click.echo("vpa-ippr: not everything could be put back: run `vpa-ippr actuator restore`", err=True)
    if result.limit_is_set:
        _warn_of_systemd(request)
    return _exit_code(result)


def _warn_of_systemd(request: Request) -> None:
    """Systemd has a limit of its own, which it writes again when it is reloaded."""
    from vpa_ippr.actuator.systemd import unit_of

    unit = unit_of(request.path.rpartition("/")[2])
    if unit is not None:
        limit = request.policy.page_floor(request.target_bytes)
        click.echo(f"to keep it over a daemon-reload: systemctl set-property --runtime {unit} MemoryMax={limit}", err=True)


def _settle_left_over(journal: Journal, cgroup: Cgroup, cgroups: NodeCgroups, place: Place) -> None:
    """What a shrink before this one has left is put back before anything else."""
    for restorer in restorers([place.state_dir], cgroups, place.proc):
        for outcome in restorer.settle_own(journal):
            if outcome.error and outcome.entry.cgroup_identity == cgroup.identity():
                raise ActuatorError(f"an earlier shrink of {outcome.entry.name} {outcome.text}")
            click.echo(f"left by an earlier shrink: {outcome.entry.name}: {outcome.text}", err=True)


def _rehearse(request: Request, cgroup: Cgroup, progress: _Progress, form: str) -> int:
    from vpa_ippr.actuator import standalone
    from vpa_ippr.api.shrink import Phase

    with stoppable() as (clock, stop):
        state = standalone.rehearse(request, cgroup, clock, stop, progress.show)
    progress.end()
    would = state.phase is Phase.SHRINKING
    answer: dict[str, Any] = {
        "cgroup": request.path,
        "targetBytes": state.target_bytes,
        "wouldShrink": would,
        "reason": str(state.reason),
        "message": state.message,
        "usageBytes": state.last.usage_bytes if state.last is not None else None,
        "bearableBytes": state.floor_bytes,
    }
    if would and state.plan is not None and state.pace is not None:
        answer |= {"goalBytes": state.plan.goal_bytes, "guardBytes": state.plan.guard_bytes, "firstStepBytes": state.pace.asked_bytes}
        text = (
            f"would be shrunk: {state.message}; guard {mib(state.plan.guard_bytes)}, "
            f"first step {mib(state.pace.asked_bytes or 0)}, then memory.max {mib(state.target_bytes)}"
        )
    else:
        text = f"would not be shrunk ({state.reason}): {state.message}"
    _print(answer | {"text": text}, form)
    return EXIT_DONE if would else EXIT_FAILED


def _verdict(request: Request, result: Result, seconds: float) -> dict[str, Any]:
    state = result.state
    last = state.last
    return {
        "cgroup": request.path,
        "targetBytes": state.target_bytes,
        "outcome": str(state.phase),
        "reason": str(state.reason),
        "message": state.message,
        "wasHeld": result.was_held,
        "limitIsSet": result.limit_is_set,
        "usageBytes": last.usage_bytes if last is not None else None,
        "bearableBytes": state.floor_bytes,
        "steps": state.pace.steps if state.pace is not None else 0,
        "seconds": round(seconds, 1),
        "isLeftOver": result.is_left_over,
        "text": f"{state.phase} ({state.reason}): {state.message}" + _told_limit(result),
    }


def _told_limit(result: Result) -> str:
    if result.limit_is_set:
        return f"; memory.max is {mib(result.state.target_bytes)}"
    floor = result.state.floor_bytes
    return f"; it would bear {mib(floor)}" if floor is not None else ""


def _exit_code(result: Result) -> int:
    from vpa_ippr.api.shrink import Phase

    if result.state.phase is Phase.DONE:
        return EXIT_DONE
    return EXIT_PARTIAL if result.was_held and result.state.phase is Phase.EXPIRED else EXIT_FAILED


def _print(answer: dict[str, Any], form: str) -> None:
    text = answer.pop("text")
    if form == "json":
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
    else:
        click.echo(f"{answer['cgroup']}: {text}")


class _Progress:
    """On stderr: one line that is rewritten on a terminal, else a line for each phase."""

    def __init__(self, path: str, policy: Policy) -> None:
        self._path = path
        self._policy = policy
        self._is_heard = True
        self._is_terminal = sys.stderr.isatty()
        self._width = 0
        self._said = ""

    def show(self, state: ShrinkState) -> None:
        """Tell where it is, as long as somebody listens: a terminal that was closed ends no shrink in the middle."""
        if self._is_heard:
            try:
                self._tell(state)
            except OSError:
                self._is_heard = False

    def _tell(self, state: ShrinkState) -> None:
        if self._is_terminal:
            line = self._line(state)
            click.echo("\r" + line.ljust(self._width), err=True, nl=False)
            self._width = len(line)
        elif state.phase != self._said:
            self._said = state.phase
            click.echo(f"{self._path}: {self._line(state)}", err=True)

    def end(self) -> None:
        """Leave the last line standing."""
        if self._is_terminal and self._width and self._is_heard:
            click.echo(err=True)

    def _line(self, state: ShrinkState) -> str:
        from vpa_ippr.actuator.status import status_of

        status = status_of(state, self._policy, 0)
        parts = [str(state.phase)]
        if state.last is not None:
            parts += [f"{mib(state.last.usage_bytes)} used, {mib(state.target_bytes)} wanted"]
            parts += [f"memory.high {limit_text(state.last.high_bytes)}"]
            parts += [f"pressure {status.memory_pressure_percent:g} % memory, {status.io_pressure_percent:g} % I/O"]
        if status.steps:
            parts += [f"{status.steps} steps"]
        return " | ".join([*parts, state.message or str(state.reason)])
