"""The demo's story on the terminal and as a page."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vpa_ippr.api.resources import ContainerResources
from vpa_ippr.api.shrink import MemoryShrink, Phase
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.cli.demo_story import ContainerStory, Story
from vpa_ippr.report.page import Chapter, Page, render_page
from vpa_ippr.report.units import change_text, cpu_text, memory_text

_PIPED_WIDTH = 10_000  # a pipe has no width: one row, one line


def write_page(story: Story, path: Path) -> None:
    """Write the page of the run."""
    days = (story.end - story.start) / 86_400
    resizes, lowered = story.resizes(), sum(1 for shrink in story.shrinks if shrink.status.phase is Phase.DONE)
    page = Page(
        title="vpa-ippr at work",
        subtitle=f"{days:g} simulated days in an embedded cluster: real recommender, updater and actuator, profile balanced.",
        start=story.start,
        end=story.end,
        figures=[
            ("resizes completed", str(resizes.get("Completed", 0))),
            ("memory limits lowered through a shrink", str(lowered)),
            ("shrinks that the node refused or took back", str(sum(1 for s in story.shrinks if s.status.phase in _NOT_DONE))),
            ("resizes deferred", str(resizes.get("Deferred", 0))),
            ("OOM kills below the first limit", str(sum(kill.lowered for kill in story.ooms))),
            ("other OOM kills", str(sum(not kill.lowered for kill in story.ooms))),
        ],
        chapters=[_chapter(number, container) for number, container in enumerate(story.containers)],
    )
    path.write_text(render_page(page), encoding="utf-8")


_NOT_DONE = (Phase.REFUSED, Phase.REVERTED, Phase.EXPIRED)


def summarise(story: Story) -> dict[str, Any]:
    """The outcome for programs, written beside the page."""
    return {
        "schema": "vpa-ippr/demo/v1",
        "start": format_time(story.start),
        "end": format_time(story.end),
        "resizes": dict(story.resizes()),
        "shrinks": [
            {
                "namespace": shrink.metadata.namespace,
                "pod": shrink.spec.pod.name,
                "container": shrink.spec.container.name,
                "target_bytes": shrink.spec.target_bytes,
                "phase": shrink.status.phase.value,
                "reason": shrink.status.reason,
                "message": shrink.status.message,
            }
            for shrink in story.shrinks
        ],
        "oom_kills": [
            {"at": format_time(kill.at), "pod": kill.pod, "container": kill.container, "below_first_limit": kill.lowered}
            for kill in story.ooms
        ],
        "events": [
            {"at": format_time(told.at), "namespace": told.namespace, "pod": told.pod, "reason": told.reason, "message": told.message}
            for told in story.told
        ],
    }


def _chapter(number: int, story: ContainerStory) -> Chapter:
    workload, before, after = story.workload, story.before, story.after
    more = f" (the first of {story.pods} pods)" if story.pods > 1 else ""
    parts = [
        f"CPU request {cpu_text(before.requests.cpu_millicores)} → {cpu_text(after.requests.cpu_millicores)}",
        f"memory request {memory_text(before.requests.memory_bytes)} → {memory_text(after.requests.memory_bytes)}",
        f"memory limit {memory_text(before.limits.memory_bytes)} → {memory_text(after.limits.memory_bytes)}",
    ]
    return Chapter(
        anchor=f"c{number}",
        title=f"{workload.namespace}/{workload.name}" + (f" · {story.container.name}" if len(workload.containers) > 1 else ""),
        character=workload.character,
        cpu=story.cpu,
        memory=story.memory,
        happenings=story.happenings,
        outcome=", ".join(parts) + more + ".",
    )


def render_story(story: Story, *, width: int | None, colour: bool) -> str:
    """Before and after, the shrinks, the resizes by result and the OOM kills, as text."""
    out = io.StringIO()
    console = Console(
        file=out, width=width or _PIPED_WIDTH, force_terminal=colour, no_color=not colour, color_system="standard" if colour else None,
        highlight=False, legacy_windows=False,
    )  # fmt: skip
    console.print(_before_after(story.containers))
    console.print()
    console.print(_shrinks(story.shrinks))
    console.print()
    for line in _summary(story):
        console.print(Text(line), soft_wrap=True)
    return out.getvalue()


def _before_after(containers: Sequence[ContainerStory]) -> Table:
    table = _table("WORKLOAD", "CONTAINER", "PODS", "CPU REQUEST", "CPU LIMIT", "MEMORY REQUEST", "MEMORY LIMIT", "RESTARTS")
    for story in containers:
        table.add_row(
            f"{story.workload.namespace}/{story.workload.name}",
            story.container.name,
            str(story.pods),
            *_steps(story.before, story.after),
            str(story.restarts),
        )
    return table


def _steps(before: ContainerResources, after: ContainerResources) -> list[Text]:
    pairs = [
        (before.requests.cpu_millicores, after.requests.cpu_millicores, cpu_text),
        (before.limits.cpu_millicores, after.limits.cpu_millicores, cpu_text),
        (before.requests.memory_bytes, after.requests.memory_bytes, memory_text),
        (before.limits.memory_bytes, after.limits.memory_bytes, memory_text),
    ]
    return [_step(text(old), text(new), change_text(old, new)) for old, new, text in pairs]


def _step(old: str, new: str, change: str) -> Text:
    if old == new:
        return Text(new)
    return Text(f"{old} → {new}").append(f" {change}" if change else "", style="green" if change.startswith("-") else "yellow")


def _shrinks(shrinks: Sequence[MemoryShrink]) -> Table:
    table = _table("SHRINK OF POD", "CONTAINER", "TARGET", "PHASE", "REASON", "STEPS", "MESSAGE")
    for shrink in shrinks:
        status = shrink.status
        style = "green" if status.phase is Phase.DONE else "red" if status.phase in _NOT_DONE else "cyan"
        table.add_row(
            shrink.spec.pod.name,
            shrink.spec.container.name,
            memory_text(shrink.spec.target_bytes),
            Text(status.phase.value, style=style),
            status.reason,
            str(status.steps),
            status.message,
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=name != "MESSAGE", overflow="ellipsis" if name != "MESSAGE" else "fold")
    return table


def _summary(story: Story) -> list[str]:
    phases = Counter(shrink.status.phase.value for shrink in story.shrinks)
    caused = sum(kill.lowered for kill in story.ooms)
    return [
        "resizes: " + ", ".join(f"{count} {result.lower()}" for result, count in story.resizes().items()),
        "shrinks: " + ", ".join(f"{count} {phase.lower()}" for phase, count in sorted(phases.items())),
        f"OOM kills: {caused} with a limit that we had lowered, {len(story.ooms) - caused} others",
    ]
