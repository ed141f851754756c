"""The card that lies beside a trained model: what it was made from, how good it is where, and how to make it again. Markdown."""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Final

from vpa_ippr.forecast.crossvalidation import JUDGED, Quality, Source
from vpa_ippr.forecast.families import FAMILIES
from vpa_ippr.forecast.features import NAMES
from vpa_ippr.forecast.quantiles import Horizon
from vpa_ippr.forecast.training import TrainingOptions

_LIBRARIES: Final = ("numpy", "scikit-learn", "skops")
_NEXT: Final = {Horizon.HOUR: "next hour", Horizon.DAY: "next day"}
_WIDTH: Final = 140
_LIMITS: Final = """\
- It answers quantiles of the largest use in the next hour and in the next day, on five-minute steps (the mean of CPU, the highest of
  memory). Bursts that are shorter than a step are not seen.
- It knows shapes, not reasons: what never happened to a container (a first leak, a first rollout) it expects as often as it happened to
  others.
- History beyond 14 days is not looked at. In the first hours of a container its answers are wide, and they are meant to be.
- CPU that is throttled and memory that is cut off by its limit look smaller than the need; that is mended outside of the model.
- Coverage on data unlike the sources above can be off by several points: the recommender calibrates each series by what came.
- Losses are shares of a series' own scale, the mean of the hourly maxima of its last week, and say nothing of costs or OOM kills; for
  those see `vpa-ippr backtest`."""


@dataclass(frozen=True, slots=True)
class TraceOrigin:
    """Where a source comes from: the name and SHA-256 of its file, and the licence that was stated for it."""

    file: str
    sha256: str
    licence: str


@dataclass(frozen=True, slots=True, eq=False)
class Card:
    """All that a card says. ``qualities`` were found by cross-validation, ``unseen`` by the model itself; ``date`` is YYYY-MM-DD."""

    date: str
    artefact: str
    artefact_bytes: int
    artefact_sha256: str
    command: str
    options: TrainingOptions
    folds: int
    synthetic: int
    synthetic_days: float
    origins: Mapping[str, TraceOrigin]
    qualities: Sequence[Quality]
    unseen: Sequence[Quality]


def render_card(card: Card) -> str:
    """The card as Markdown."""
    return "\n\n".join(_parts(card)) + "\n"


def _parts(card: Card) -> Iterator[str]:
    yield f"# Model card: {card.artefact}"
    yield _wrapped(
        f"Quantile gradient boosting over {len(NAMES)} features of a series' own recent past; one model for CPU and memory, as all amounts "
        f"are ratios to the series' own scale. Trained {card.date}; {card.artefact_bytes:,} bytes, SHA-256 `{card.artefact_sha256}`."
    )
    yield "## Data"
    yield _data(card)
    if card.synthetic:
        yield _wrapped(
            f"`synthetic` is made up (`vpa_ippr/forecast/families.py`): {card.synthetic} series of {card.synthetic_days:g} days of each "
            f"family: {', '.join(FAMILIES)}."
        )
    yield "A source gives rows in proportion to the square root of its samples."
    yield "## Options"
    yield "\n".join(f"- {name}: {_told(value)}" for name, value in asdict(card.options).items())
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    yield f"With vpa-ippr {version('vpa-ippr')}, Python {platform.python_version()}, {libraries}."
    yield "## Quality"
    yield _wrapped(
        "Pinball loss at each quantile, in shares of a series' scale, smaller is better; in brackets that of the trailing quantile of the "
        "last week. Coverage (cov.) is the share of moments that stayed at or below the quantile."
    )
    yield f"Cross-validated in {card.folds} folds; no series, and no two of one workload, is on both sides of a fold:"
    yield _table(card.qualities)
    if card.unseen:
        yield (
            "Sources that it never saw, judged by the model itself. "
            "Whoever chooses options while looking at these numbers makes the sources\nless blind than they look:"
        )
        yield _table(card.unseen)
    yield "## Limits"
    yield _LIMITS
    yield "## How to make it again"
    yield f"Run where the trace files are. The same files, options and libraries give the same bytes.\n\n```sh\n{card.command}\n```"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _told(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _data(card: Card) -> str:
    lines = ["| source | resource | series | days | used for | licence | file, SHA-256 |", "|---|---|---|---|---|---|---|"]
    for purpose, qualities in (("training", card.qualities), ("judging only", card.unseen)):
        lines += [_origin(quality.source, purpose, card.origins.get(quality.source.name)) for quality in qualities]
    return "\n".join(lines)


def _origin(source: Source, purpose: str, origin: TraceOrigin | None) -> str:
    licence, file = (origin.licence, f"{origin.file} `{origin.sha256[:16]}…`") if origin else ("own", "")
    return f"| {source.name} | {source.kind} | {len(source.grid)} | {source.days:.0f} | {purpose} | {licence} | {file} |"


def _table(qualities: Sequence[Quality]) -> str:
    heads = [f"p{level * 100:.0f}" for level in JUDGED]
    lines = [
        f"| source | resource | horizon | moments | {' | '.join(heads)} | {' | '.join(f'cov. {head}' for head in heads)} |",
        "|---|---|---|---" + "|---" * 2 * len(heads) + "|",
    ]
    for quality in qualities:
        for horizon, score in quality.scores.items():
            losses = [f"{ours:.4f} ({theirs:.4f})" for ours, theirs in zip(score.pinball, score.trailing, strict=True)]
            covered = [f"{share * 100:.1f} %" for share in score.coverage]
            cells = (quality.source.name, quality.source.kind, _NEXT[horizon], str(score.moments), *losses, *covered)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
