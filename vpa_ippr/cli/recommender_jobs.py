"""What the recommender does again and again: cycles, checkpoints, and where it is asked for, retraining and a report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from vpa_ippr.api.clock import Clock
from vpa_ippr.api.errors import UsageError, ValidationError
from vpa_ippr.api.series import Finding
from vpa_ippr.cli.files import write_whole
from vpa_ippr.cli.report import from_cluster, render
from vpa_ippr.cli.schedule import Job
from vpa_ippr.cluster.kube import Kube
from vpa_ippr.forecast.forecasters import ProfileModel, profile_model
from vpa_ippr.recommend.cycle import CycleResult
from vpa_ippr.recommend.service import RecommenderService

logger = logging.getLogger(__name__)

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """How often the jobs run, in seconds; ``retrain`` is None for never. ``jitter`` puts each cycle off by up to this."""

    cycle: float
    checkpoint: float
    retrain: float | None
    report: float
    jitter: float


def jobs_of(service: RecommenderService, timing: Timing, *, retrain: Work | None, report: Work | None) -> list[Job]:
    """The jobs, in the order in which they run at the start; without ``report`` there is none.

    Raises:
        UsageError: retraining is asked for, and ``retrain`` is None: no profile has a model.
    """
    jobs = [
        Job("cycle", partial(run_cycle, service), timing.cycle, timing.jitter),
        Job("checkpoint", partial(save_checkpoints, service), timing.checkpoint),
    ]
    if timing.retrain is not None:
        if retrain is None:
            raise UsageError(
                "--retrain-interval: no profile of the catalogue has a model that could be retrained", reason="NothingToRetrain"
            )
        jobs.append(Job("retrain", retrain, timing.retrain))
    if report is not None:
        jobs.append(Job("report", report, timing.report))
    return jobs


def run_once(service: RecommenderService) -> int:
    """One cycle with its checkpoints; the exit code."""
    result = service.run_cycle()
    whole = replace(result, failures=result.failures + service.write_checkpoints().failures)
    _tell(whole)
    return whole.exit_code


def run_cycle(service: RecommenderService) -> None:
    """One cycle, and a line for each thing that could not be done."""
    _tell(service.run_cycle())


def save_checkpoints(service: RecommenderService) -> None:
    """Write the checkpoints that have changed, and a line for each that could not be written."""
    result = service.write_checkpoints()
    _tell_failures(result.failures)
    if result.written:
        logger.info("checkpoints written", extra={"checkpoints": result.written})


def _tell(result: CycleResult) -> None:
    _tell_failures(result.failures)
    logger.info(
        "cycle done",
        extra={
            "vpas": len(result.outcomes),
            "recommended": sum(1 for outcome in result.outcomes if outcome.recommendations),
            "written": result.statuses_written,
            "failed": len(result.failures),
        },
    )


class Retraining:
    """The job that trains a model on own history and adopts it if it is better."""

    def __init__(self, service: RecommenderService, path: Path | None, *, waits: bool) -> None:
        """``path``: the file in which an adopted model is kept. ``waits``: the run at the start is left out, there is a model already."""
        self._service = service
        self._path = path
        self._waits = waits

    def __call__(self) -> None:
        """One retrain. What is adopted is in the file before it is used, and in the checkpoints after: a restart goes on with it.

        Raises:
            UsageError: the file cannot be written; the model stays as it was.
        """
        if self._waits:
            self._waits = False
            return
        verdict = self._service.retrain()
        kept_in = "memory only, until the recommender stops" if self._path is None else str(self._path)
        if verdict.model is not None and self._path is not None:
            write_whole(self._path, verdict.data)
        finding = verdict.finding
        extra = {"reason": finding.reason, "verdict": finding.message} | ({"kept_in": kept_in} if verdict.model is not None else {})
        logger.info("retrained", extra=extra)
        if verdict.model is not None:
            self._service.adopt(verdict.model)
            run_cycle(self._service)
            save_checkpoints(self._service)


def read_model(path: Path) -> ProfileModel | None:
    """The model that a retrain left in the file; None, and a line that says why, when there is none that can be used."""
    try:
        return profile_model(path.read_bytes())
    except FileNotFoundError:
        logger.info("no model in the file yet, the profile's is used", extra={"file": str(path)})
    except OSError as error:
        logger.warning("model file not used", extra={"file": str(path), "reason": "ModelUnreadable", "error": error.strerror})
    except ValidationError as error:
        logger.warning("model file not used", extra={"file": str(path), "reason": error.reason, "error": str(error)})
    return None


def write_report(kube: Kube, clock: Clock, source: str, path: Path) -> None:
    """The JSON of ``vpa-ippr report`` over all VPAs, in a file that is always whole.

    Raises:
        ClusterError: the cluster could not be read; the file stays as it was.
        UsageError: the file cannot be written.
    """
    report = from_cluster(kube, clock.now(), source)
    write_whole(path, render(report, "json"))
    logger.info("report written", extra={"file": str(path), "containers": len(report.rows), "failed": len(report.failures)})


def _tell_failures(failures: Iterable[Finding]) -> None:
    for failure in failures:
        logger.warning("not done", extra={"subject": failure.subject, "reason": failure.reason, "error": failure.message})
