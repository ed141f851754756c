"""A run's findings as a page for a reader: short, with units and intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from bench.quality.choice import Choice
from bench.quality.corpus import LEAST_DAYS, MOST_DAYS
from bench.quality.evidence import BASELINE, MAIN_PROFILE, WARMUP_DAYS
from bench.quality.findings import Findings, ForecastCheck, Run, SourceCheck, is_open
from bench.quality.targets import COVERAGE_BOUNDS, HEAD_ROOM, SOURCE_RULES, Judged, SourceRule, Verdict
from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.averages import LEAST_SERIES_OF_SOURCE, Average
from vpa_ippr.backtest.comparison import Comparison

NOTES_BEGIN: Final = "<!-- notes: what stands between these two lines is kept when the page is written again -->"
NOTES_END: Final = "<!-- end of notes -->"

_Format = Callable[[float], str]
_Check = TypeVar("_Check", SourceCheck, ForecastCheck)
_NAMES: Final = {Resource.CPU: "CPU", Resource.MEMORY: "memory"}


def _percent(digits: int) -> _Format:
    return lambda share: f"{share * 100:.{digits}f} %"


_SHARE: Final = _percent(1)
_FINE_SHARE: Final = _percent(2)
_RATIO: Final[_Format] = "{:.3f}".format
_FAMILIES: Final = (
    "Made-up series and simulated containers of known truth: leaks, restarts, OOM loops, rollouts. The last column is the VPA's algorithm"
    " on the same, where the question arises. `tests/families` holds what is expected of them."
)
_ROOM: Final = _percent(0)(HEAD_ROOM)


def render(run: Run, findings: Sequence[Findings], figure: str | None, notes: str, families: str) -> str:
    """The page as Markdown.

    ``figure`` is the name of the picture beside it, ``notes`` what people wrote on the last one, ``families`` the table of made-up series;
    each may be empty.
    """
    parts = [*_head(run, findings), *_targets(findings), *_notes(notes), *_data(run, findings)]
    for one in findings:
        parts += [f"## {_title(one)}", *_policies(one.evidence.comparison), *_sources(one), *_forecasts(one), *_choice(one.choice)]
    if families:
        parts += ["## What recordings lack", _FAMILIES, families.strip()]
    if figure is not None:
        parts += ["## Picture", f"![Slack against violations: left is less slack, down is fewer violations or OOM kills]({figure})"]
    parts += _cost(run, findings)
    return "\n\n".join(parts) + "\n"


def notes_of(page: str) -> str:
    """What people wrote on a page."""
    _, begin, rest = page.partition(NOTES_BEGIN)
    notes, end, _ = rest.partition(NOTES_END)
    return notes.strip() if begin and end else ""


def _head(run: Run, findings: Sequence[Findings]) -> Iterator[str]:
    counts = Counter(verdict for one in findings for verdict in one.verdicts if verdict is not Verdict.UNKNOWN)
    unseen = " on series that were held out: nobody tuned on them and no model saw them" if run.held_out else ""
    yield "# Quality: do the profiles beat the VPA?"
    yield (
        f"Measured on {run.date}{unseen}. Of {sum(counts.values())} checks {counts[Verdict.MET]} are met, {counts[Verdict.NARROW]} met "
        f"with less than {_ROOM} of head-room, {counts[Verdict.MISSED]} not met."
    )
    yield "```sh\npython -m bench.quality --traces-dir DIR                        # writes this page, all but the notes\n```"
    yield (
        "What is replayed, how the actuator works and what the scores mean is in [backtest.md](backtest.md). Numbers are averages over "
        "series, then over sources; intervals are 95 % bootstrap intervals over series."
    )


def _targets(findings: Sequence[Findings]) -> Iterator[str]:
    yield "## Targets"
    yield (
        f"Against `{BASELINE}` in place, same floors. Head-room is the distance to the target as a share of it; with less than "
        f"{_ROOM} a target may be met by luck."
    )
    rows = [_target_row(judged) for one in findings for judged in one.targets]
    yield _table(("", "profile", "resource", "what", "target", "measured", "95 % interval", "head-room", "verdict"), rows)
    passed = [("3", f"no source worse: {rule.text}", _bound(rule), _worst(one, rule)) for one, rule in _with_rules(findings)]
    coverage = [
        (
            "3",
            f"{_NAMES[one.resource]}: coverage of the 90 % quantile, next {one.horizon}, every source",
            _coverage_bounds(),
            _coverages(one),
        )
        for one in findings
        if one.forecast_checks
    ]
    yield _table(("", "what", "target", "verdict"), passed + coverage)


def _target_row(judged: Judged) -> tuple[str, ...]:
    target, form = judged.target, _form(judged)
    return (
        str(target.item),
        target.profile,
        _NAMES[target.resource],
        target.text,
        f"{target.sense} {form(target.bound)}",
        form(judged.measured.value),
        _interval(judged.measured, form),
        _known(judged.head_room, lambda room: f"{room * 100:+.0f} %"),
        _short(judged.verdict),
    )


def _form(judged: Judged) -> _Format:
    return _SHARE if judged.target.is_share else "{:.2f}".format


def _with_rules(findings: Iterable[Findings]) -> list[tuple[Findings, SourceRule]]:
    return [(one, SOURCE_RULES[one.resource]) for one in findings]


def _bound(rule: SourceRule) -> str:
    return f"at most {_more(rule)(rule.bound)}"


def _more(rule: SourceRule) -> _Format:
    return (lambda value: f"{value * 100:+.2f}") if rule.resource is Resource.CPU else "{:.2f}".format


def _worst(one: Findings, rule: SourceRule) -> str:
    more = _more(rule)
    return _all_of(one.source_checks, lambda check: f"{check.source} with {check.profile} {more(check.measured.value)}")


def _coverage_bounds() -> str:
    low, high = COVERAGE_BOUNDS
    return f"{low * 100:.0f} to {high * 100:.0f} %"


def _coverages(one: Findings) -> str:
    return _all_of(one.forecast_checks, lambda check: f"{check.source} {_FINE_SHARE(check.coverage.value)}")


def _all_of(checks: Sequence[_Check], say: Callable[[_Check], str]) -> str:
    """One verdict for several checks, and which of them fail."""
    judged = [check for check in checks if check.verdict is not Verdict.UNKNOWN]
    missed = [check for check in judged if check.verdict is Verdict.MISSED]
    if missed:
        return f"{_short(Verdict.MISSED)}: {', '.join(map(say, missed))}"
    return f"{Verdict.MET}, {len(judged)} of {len(judged)}" if judged else str(Verdict.UNKNOWN)


def _notes(notes: str) -> Iterator[str]:
    yield "## Notes"
    yield "\n".join(line for line in (NOTES_BEGIN, notes, NOTES_END) if line)


def _data(run: Run, findings: Sequence[Findings]) -> Iterator[str]:
    yield "## What was measured"
    sources = sorted({source for one in findings for source in one.sources})
    headings = ("source", *(f"{_NAMES[one.resource]} series" for one in findings), "judged by")
    rows = [(source, *(str(one.sources.get(source, "")) for one in findings), _judge(run, source)) for source in sources]
    days = [f"{one.evidence.comparison.container_days:,.0f} container-days of {_NAMES[one.resource]}" for one in findings]
    yield _table(headings, rows)
    yield (
        f"Recorded use on a grid of 5 minutes: the first {MOST_DAYS:g} days of every series that has {LEAST_DAYS:g} or more; the first "
        f"{WARMUP_DAYS:g} days of each are not scored. Scored: {' and '.join(days)}. Sources with fewer than {LEAST_SERIES_OF_SOURCE} "
        "series are shown but do not count. The recordings are no part of this project."
    )
    if run.held_out:
        yield f"Every series is judged by the shipped model (SHA-256 `{run.model_sha256}`)."
        return
    yield (
        f"**No series is judged by a model that saw it.** The shipped model (SHA-256 `{run.model_sha256}`) was trained on the openly "
        f"licensed sources; their series are dealt into {run.folds} folds (seed {run.seed}) and each fold is judged by a model that was "
        f"trained in the same way on the other folds and on {run.synthetic} made-up series of each family. The CPU and memory series of a "
        "container, and numbered siblings of one collection, lie in one fold. All other sources are judged by the shipped model."
    )


def _judge(run: Run, source: str) -> str:
    return "models that did not see it" if is_open(source) and not run.held_out else "the shipped model"


def _policies(comparison: Comparison) -> Iterator[str]:
    is_cpu = comparison.resource is Resource.CPU
    columns: list[tuple[str, str, _Format, bool]] = [
        ("relative_slack", "relative slack", _SHARE, False),
        ("allocation_ratio", "allocation, VPA = 1", _RATIO, True),
        ("slack_ratio", "slack volume, VPA = 1", _RATIO, True),
        ("violation_time", "violation time", _FINE_SHARE, is_cpu),
        ("violation_volume", "violation volume", _FINE_SHARE, is_cpu),
        *([] if is_cpu else [("ooms_per_day", "OOM kills a day", "{:.4f}".format, True), ("any_oom", "any OOM kill", _SHARE, False)]),
        ("resizes_per_day", "resizes a day", "{:.2f}".format, False),
    ]
    rows = []
    for outcome in comparison.outcomes:
        averages = outcome.averages.balanced
        cells = [
            _with_interval(averages[name], form) if interval else _known(averages[name].value, form) for name, _, form, interval in columns
        ]
        rows.append((f"`{outcome.policy}`", *cells))
    yield "### Policies"
    yield _table(("policy", *(title for _, title, _, _ in columns)), rows)


def _sources(one: Findings) -> Iterator[str]:
    rule = SOURCE_RULES[one.resource]
    profiles = list(dict.fromkeys(check.profile for check in one.source_checks))
    slack = {outcome.policy: outcome.averages.by_source for outcome in one.evidence.comparison.outcomes}
    yield "### By source"
    yield (
        f"Slack volume (VPA = 1), and {rule.text}; {_bound(rule)}, bold is more. Sources with fewer than {LEAST_SERIES_OF_SOURCE} series, "
        "and profiles without targets, are not judged."
    )
    rows = []
    for source, series in one.sources.items():
        cells = [source, str(series)]
        for check in (check for check in one.source_checks if check.source == source):
            ratio = slack[check.profile].get(source, {}).get("slack_ratio", math.nan)
            cells += [_known(ratio, _RATIO), _judged_cell(_with_interval(check.measured, _more(rule)), check.verdict)]
        rows.append(cells)
    what = rule.text.partition(",")[0]
    yield _table(("source", "series", *(f"`{name}` {title}" for name in profiles for title in ("slack", what))), rows)


def _judged_cell(text: str, verdict: Verdict) -> str:
    return f"**{text}**" if verdict is Verdict.MISSED else text


def _short(verdict: Verdict) -> str:
    return {Verdict.UNKNOWN: "-", Verdict.MISSED: f"**{verdict}**"}.get(verdict, str(verdict))


def _title(one: Findings) -> str:
    name = _NAMES[one.resource]
    return name[0].upper() + name[1:]


def _forecasts(one: Findings) -> Iterator[str]:
    if not one.forecast_checks:
        return
    yield "### Forecasts"
    yield (
        f"The 90 % quantile of the largest use in the next {one.horizon}, as `{MAIN_PROFILE}` tells it with every recommendation: how "
        f"often use stayed below ({_coverage_bounds()} is asked for), and the pinball loss beside that of the last week's 90 % quantile "
        "(below 1 is better). *Model alone* is the gradient boosting before calibration."
    )
    yield _table(
        ("source", "coverage", "verdict", "model alone", "last week's quantile", "pinball loss, last week's = 1", "model alone"),
        [_forecast_row(check) for check in one.forecast_checks],
    )


def _forecast_row(check: ForecastCheck) -> tuple[str, ...]:
    return (
        check.source,
        _with_interval(check.coverage, _SHARE),
        _short(check.verdict),
        _known(check.coverage_model, _SHARE),
        _known(check.coverage_trailing, _SHARE),
        _with_interval(check.pinball, _RATIO),
        _known(check.pinball_model, _RATIO),
    )


def _choice(choice: Choice | None) -> Iterator[str]:
    if choice is None:
        return
    yield "### Settings moved"
    yield (
        f"`{MAIN_PROFILE}` with one setting at a time made smaller or larger, on the same series; bold numbers miss their target. The last "
        "row is cross-validated: for each fold the setting was chosen on the other folds (most head-room on what must not be paid, up to "
        f"{_ROOM}, then most gain) and judged on that fold. Where it is close to the first row, tuning on these series would gain "
        "little."
    )
    headings = ("setting", *(judged.target.text for judged in choice.crossed))
    rows = [(name, *_settings_row(judged)) for name, judged in choice.by_setting.items()]
    yield _table(headings, [*rows, ("**chosen on other folds**", *_settings_row(choice.crossed))])
    picked = ", ".join(f"fold {fold}: {name}" for fold, name in choice.chosen.items())
    yield f"Chosen: {picked}."


def _settings_row(judged: Sequence[Judged]) -> list[str]:
    return [f"**{_form(one)(one.measured.value)}**" if one.head_room < 0 else _form(one)(one.measured.value) for one in judged]


def _cost(run: Run, findings: Sequence[Findings]) -> Iterator[str]:
    yield "## What the run took"
    rows = [(f"training without fold {fold}", cost) for fold, cost in enumerate(run.training)]
    rows += [(f"replays of {_NAMES[one.resource]}", one.evidence.cost) for one in findings]
    yield _table(("part", "CPU s", "peak MiB"), [(name, f"{cost.cpu_seconds:.0f}", f"{cost.peak_mib:.0f}") for name, cost in rows])
    yield f"{sum(cost.cpu_seconds for _, cost in rows) / 60:.0f} minutes of CPU in all, {run.wall_seconds / 60:.0f} minutes by the clock."


def _with_interval(average: Average, form: _Format) -> str:
    """The number and its interval, if it has one."""
    return _known(average.value, form) + ("" if average.low == average.high else f" ({_interval(average, form)})")


def _interval(average: Average, form: _Format) -> str:
    return f"{_known(average.low, form)} to {_known(average.high, form)}"


def _known(value: float, form: _Format) -> str:
    return "-" if math.isnan(value) else form(value)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
