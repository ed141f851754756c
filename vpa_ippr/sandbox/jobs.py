"""Jobs and CronJobs."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.sandbox.owners import World, is_active, is_ready, owner_reference, phase_of, retry_delay
from vpa_ippr.sandbox.status import StatusError

Json = dict[str, Any]
DEFAULT_BACKOFF_LIMIT = 6
# Field by field: minute, hour, day of the month, month, day of the week (0 and 7 are Sunday).
_CRON_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
# A day that comes at all comes within the leap-year cycle.
_SEARCH_DAYS = 366 * 8


class Jobs:
    """Runs pods until enough have succeeded."""

    kind = "Job"

    def __init__(self, world: World) -> None:
        self._world = world
        self._not_before: dict[str, float] = {}

    def reconcile(self, owner: Json) -> None:
        """Start pods as far as parallelism and completions allow; after too many failures give up."""
        world, spec = self._world, owner["spec"]
        pods = world.pods.owned_by(owner["metadata"]["uid"])
        succeeded = sum(phase_of(pod) == "Succeeded" for pod in pods)
        failed = sum(phase_of(pod) == "Failed" for pod in pods)
        active = [pod for pod in pods if is_active(pod)]
        known: Json = owner.get("status") or {}
        if any(c["type"] in ("Complete", "Failed") for c in known.get("conditions") or []):
            return
        parallelism = spec.get("parallelism", 1)
        completions = spec.get("completions", parallelism)
        is_complete, is_failed = succeeded >= completions, failed > spec.get("backoffLimit", DEFAULT_BACKOFF_LIMIT)
        missing = min(parallelism, completions - succeeded) - len(active)
        if not (is_complete or is_failed or spec.get("suspend")) and missing > 0:
            self._create(owner, missing, failed)
        if is_failed:
            for pod in active:
                world.delete("pods", pod)
        self._report(owner, len(active), sum(is_ready(pod) for pod in active), succeeded, failed, _verdict(is_complete, is_failed))

    def _create(self, owner: Json, count: int, failed: int) -> None:
        world, metadata = self._world, owner["metadata"]
        now, uid = world.agenda.now(), metadata["uid"]
        key = f"{uid}/{failed}"
        if failed and key not in self._not_before:
            # The back-off of a Job doubles with each failure.
            self._not_before[key] = now + retry_delay(failed - 1)
            world.requeue(owner, self._not_before[key])
        if now < self._not_before.get(key, now):
            return
        labels = dict.fromkeys(("batch.kubernetes.io/job-name", "job-name"), metadata["name"])
        labels |= dict.fromkeys(("batch.kubernetes.io/controller-uid", "controller-uid"), uid)
        for _ in range(count):
            world.create_pod(owner, owner["spec"]["template"], labels=labels)

    def _report(self, owner: Json, active: int, ready: int, succeeded: int, failed: int, verdict: tuple[str, str] | None) -> None:
        now = format_time(self._world.agenda.now())
        status: Json = {
            "startTime": (owner.get("status") or {}).get("startTime", now),
            "active": active or None,
            "ready": ready,
            "succeeded": succeeded or None,
            "failed": failed or None,
        }
        if verdict is not None:
            kind, reason = verdict
            condition = {"type": kind, "status": "True", "reason": reason, "lastProbeTime": now, "lastTransitionTime": now}
            status |= {"active": None, "conditions": [condition]}
            if kind == "Complete":
                status["completionTime"] = now
            self._world.recorder.record(owner, "Normal" if kind == "Complete" else "Warning", reason, f"Job {kind.lower()}")
        self._world.set_status(owner, status)


class CronJobs:
    """Starts a Job at each time of the schedule (UTC)."""

    kind = "CronJob"

    def __init__(self, world: World) -> None:
        self._world = world
        self._planned: dict[str, float] = {}

    def reconcile(self, owner: Json) -> None:
        """Plan the next start, and drop the oldest finished Jobs."""
        uid, now = owner["metadata"]["uid"], self._world.agenda.now()
        jobs = self._world.owners["Job"].owned_by(uid)
        self._drop_old(owner, jobs)
        active = [_object_reference(job) for job in jobs if not _finished(job)]
        self._world.set_status(owner, {"active": active or None})
        if self._planned.get(uid, now) > now:
            return
        try:
            moment = next_time(owner["spec"]["schedule"], now)
        except ValidationError as error:
            self._world.recorder.record(owner, "Warning", "UnparseableSchedule", str(error))
            return
        self._planned[uid] = moment
        self._world.agenda.at(moment, lambda: self._begin(owner, moment))

    def _begin(self, planned: Json, moment: float) -> None:
        metadata = planned["metadata"]
        owner = self._world.owners[self.kind].objects.get((metadata["namespace"], metadata["name"]))
        if owner is None or owner["metadata"]["uid"] != metadata["uid"]:
            return
        running = [job for job in self._world.owners["Job"].owned_by(metadata["uid"]) if not _finished(job)]
        policy = owner["spec"].get("concurrencyPolicy", "Allow")
        if policy == "Replace":
            for job in running:
                self._world.delete("jobs.batch", job)
        if not owner["spec"].get("suspend") and not (policy == "Forbid" and running):
            self._create_job(owner, moment)
        del self._planned[metadata["uid"]]
        self.reconcile(owner)

    def _create_job(self, owner: Json, moment: float) -> None:
        template = copy.deepcopy(owner["spec"]["jobTemplate"])
        metadata = template.get("metadata") or {}
        metadata |= {
            "name": f"{owner['metadata']['name']}-{int(moment // 60)}",
            "namespace": owner["metadata"]["namespace"],
            "ownerReferences": [owner_reference(owner)],
        }
        try:
            self._world.store.create("jobs.batch", {"metadata": metadata, "spec": template["spec"]})
        except StatusError as error:
            self._world.recorder.record(owner, "Warning", "FailedCreate", f"Error creating job: {error.message}")
            return
        self._world.set_status(owner, {"lastScheduleTime": format_time(moment)})

    def _drop_old(self, owner: Json, jobs: list[Json]) -> None:
        spec = owner["spec"]
        for kind, limit in (("Complete", spec.get("successfulJobsHistoryLimit", 3)), ("Failed", spec.get("failedJobsHistoryLimit", 1))):
            finished = sorted((job for job in jobs if _finished(job) == kind), key=lambda job: job["metadata"]["creationTimestamp"])
            for job in finished[: max(0, len(finished) - limit)]:
                self._world.delete("jobs.batch", job)


def next_time(schedule: str, after: float) -> float:
    """The first time of a cron schedule after ``after`` (seconds since the epoch, UTC).

    Raises:
        ValidationError: the schedule is not five fields of ``*``, numbers, ranges, lists and steps, or never comes.
    """
    fields = _ALIASES.get(schedule, schedule).split()
    if len(fields) != len(_CRON_RANGES):
        raise ValidationError(f"schedule {schedule!r} is not five fields: minute hour day month weekday")
    minutes, hours, days, months, weekdays = (_values(f, low, high) for f, (low, high) in zip(fields, _CRON_RANGES, strict=True))
    weekdays = {day % 7 for day in weekdays}
    # As in cron: when both days are restricted, either is enough.
    either = fields[2] != "*" and fields[4] != "*"
    start = datetime.fromtimestamp(after, UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    for offset in range(_SEARCH_DAYS):
        day = start.date() + timedelta(days=offset)
        by_month_day, by_weekday = day.day in days, day.isoweekday() % 7 in weekdays
        if day.month not in months or not (by_month_day or by_weekday if either else by_month_day and by_weekday):
            continue
        for hour in sorted(hours):
            for minute in sorted(minutes):
                moment = datetime(day.year, day.month, day.day, hour, minute, tzinfo=UTC)
                if moment >= start:
                    return moment.timestamp()
    raise ValidationError(f"schedule {schedule!r} never comes")


def _values(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        try:
            begin = low if span == "*" else int(first)
            end = high if span == "*" or (step and not last) else int(last or first)
            values = range(begin, end + 1, int(step or 1))
        except ValueError as error:
            raise ValidationError(f"cannot read {part!r} in a cron schedule") from error
        if not values or begin < low or end > high:
            raise ValidationError(f"{part!r} in a cron schedule is not within {low} to {high}")
        found.update(values)
    return found


def _verdict(is_complete: bool, is_failed: bool) -> tuple[str, str] | None:
    if is_complete:
        return "Complete", "CompletionsReached"
    return ("Failed", "BackoffLimitExceeded") if is_failed else None


def _finished(job: Json) -> str:
    """``Complete``, ``Failed``, or empty while it runs."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return next((c["type"] for c in conditions if c["type"] in ("Complete", "Failed") and c["status"] == "True"), "")


def _object_reference(job: Json) -> Json:
    metadata = job["metadata"]
    return {"apiVersion": "batch/v1", "kind": "Job", "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}
