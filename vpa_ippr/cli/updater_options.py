"""The updater's settings on the command line; ``Settings`` says what each means."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from vpa_ippr.cli.options import DURATION

if TYPE_CHECKING:
    from vpa_ippr.resize.settings import Settings

_SHARE = click.FloatRange(0, 1)
_RATE = click.FloatRange(0, min_open=True)

# Names are those of the fields of ``Settings``; the defaults are tested to be the same.
_OPTIONS = (
    click.option("--min-pod-age", "min_pod_age_seconds", type=DURATION, default=43_200.0, show_default="12h",
                 help="Younger pods inside their bounds are left alone; more CPU does not wait."),
    click.option("--min-change", type=_SHARE, default=0.1, show_default=True, help="Smaller changes inside the bounds are left alone."),
    click.option("--quick-oom", "quick_oom_seconds", type=DURATION, default=600.0, show_default="10m",
                 help="A kill for memory so soon after the start makes a resize due."),
    click.option("--pause", "paused", is_flag=True, help="Begin nothing new; what is under way is followed to its end."),
    click.option("--maintenance-windows", metavar="WINDOWS",
                 help="Only urgent growth outside of these, such as 'Mon-Fri 22:00-06:00 Europe/Berlin'."),
    click.option("--min-replicas", type=click.IntRange(1), default=2, show_default=True,
                 help="Fewer live pods than this, and none is restarted or evicted."),
    click.option("--deferred-limit", "deferred_limit_seconds", type=DURATION, default=600.0, show_default="10m",
                 help="A resize deferred for longer is taken back, or the pod evicted."),
    click.option("--error-limit", "error_limit_seconds", type=DURATION, default=120.0, show_default="2m",
                 help="So long may the kubelet retry an error."),
    click.option("--hold-off", "hold_off_seconds", type=DURATION, default=900.0, show_default="15m",
                 help="Wait after a refusal or a revert, doubled each time."),
    click.option("--queue-when-full", is_flag=True, help="Ask for growth that the node has no room for; the kubelet defers it."),
    click.option("--dry-run-first", is_flag=True, help="Send each resize with dryRun=All first."),
    click.option("--canary", type=click.Choice(("off", "decreases", "all")), default="decreases", show_default=True,
                 help="Which changes one pod has to stand before the others get them."),
    click.option("--soak", "soak_seconds", type=DURATION, default=600.0, show_default="10m", help="How long it has to stand them."),
    click.option("--max-resizes-per-minute", type=_RATE, help="Over all workloads; default: no limit."),
    click.option("--disruption-tolerance", type=_SHARE, default=0.5, show_default=True,
                 help="Share of a workload's pods that may be out of service at a time."),
    click.option("--eviction-rate", "eviction_rate_per_second", type=_RATE, help="Evictions a second in the long run; default: no limit."),
    click.option("--eviction-burst", type=click.IntRange(1), default=1, show_default=True, help="Evictions at once."),
)  # fmt: skip


admission_option = click.option(
    "--admission-namespace",
    "admission_namespaces",
    multiple=True,
    default=("kube-system",),
    show_default=True,
    help="Where the Lease of an admission controller is looked for, without which nothing is evicted; may be repeated.",
)


def settings_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add them; the command gets one argument, ``settings``, a function that makes the ``Settings``."""

    @functools.wraps(command)
    def with_one_argument(**arguments: Any) -> int:
        chosen = {name: arguments.pop(name) for name in _NAMES}
        return command(settings=functools.partial(_settings, chosen), **arguments)

    for option in reversed(_OPTIONS):
        option(with_one_argument)
    return with_one_argument


_NAMES = (
    "min_pod_age_seconds",
    "min_change",
    "quick_oom_seconds",
    "paused",
    "maintenance_windows",
    "min_replicas",
    "deferred_limit_seconds",
    "error_limit_seconds",
    "hold_off_seconds",
    "queue_when_full",
    "dry_run_first",
    "canary",
    "soak_seconds",
    "max_resizes_per_minute",
    "disruption_tolerance",
    "eviction_rate_per_second",
    "eviction_burst",
)


def _settings(chosen: dict[str, Any]) -> Settings:
    """The settings; ValidationError when the windows cannot be read."""
    from vpa_ippr.resize.settings import Settings
    from vpa_ippr.resize.windows import parse_windows

    text = chosen["maintenance_windows"]
    return Settings(**{**chosen, "maintenance_windows": parse_windows(text) if text is not None else ()})
