"""The updater's command: its settings, its metrics, and what it does with them against a cluster."""

import dataclasses

import click
import pytest
from click.testing import CliRunner

from support.cli import run
from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.cli.updater_options import settings_options
from vpa_ippr.cli.updater_telemetry import UpdaterTelemetry
from vpa_ippr.cluster.telemetry import Telemetry
from vpa_ippr.resize.reasons import OutcomeCode
from vpa_ippr.resize.result import PodOutcome, UpdateResult
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.windows import parse_windows

POD = ObjectKey("shop", "web-0")


def chosen(*arguments):
    """The settings that the command line makes of these arguments."""
    made = []

    @click.command()
    @settings_options
    def command(settings):
        made.append(settings())
        return 0

    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return made[0]


def test_the_command_lines_defaults_are_those_of_the_settings():
    assert chosen() == Settings()


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("--min-pod-age", "1h"), {"min_pod_age_seconds": 3600.0}),
        (("--pause",), {"paused": True}),
        (("--canary", "all", "--soak", "5m"), {"canary": "all", "soak_seconds": 300.0}),
        (("--maintenance-windows", "Sat,Sun 00:00-24:00 UTC"), {"maintenance_windows": parse_windows("Sat,Sun 00:00-24:00 UTC")}),
        (("--eviction-rate", "0.5", "--eviction-burst", "3"), {"eviction_rate_per_second": 0.5, "eviction_burst": 3}),
        (("--queue-when-full", "--dry-run-first"), {"queue_when_full": True, "dry_run_first": True}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_is_set_on_the_command_line(arguments, wanted):
    assert chosen(*arguments) == dataclasses.replace(Settings(), **wanted)


def test_windows_that_cannot_be_read_are_one_clear_line():
    with pytest.raises(ValidationError, match="Funday"):
        chosen("--maintenance-windows", "Funday 10:00-12:00 UTC")
    outcome = run("updater", "--once", "--maintenance-windows", "Funday 10:00-12:00 UTC")
    assert outcome.code != 0
    assert "Funday" in outcome.err


def samples(telemetry):
    found = {}
    for metric in telemetry.collect():
        for sample in metric.samples:
            found[sample.name, *sample.labels.values()] = sample.value
    return found


class TestMetrics:
    """What is counted of a cycle."""

    def counted(self, *cycles):
        telemetry = Telemetry()
        updater = UpdaterTelemetry(telemetry)
        for outcomes in cycles:
            updater.timed(lambda outcomes=outcomes: UpdateResult(tuple(PodOutcome(POD, None, *one) for one in outcomes)))
        return samples(telemetry)

    def test_what_happened_adds_up_and_what_waits_does_not(self):
        waiting = (OutcomeCode.DEFERRED,)
        found = self.counted([(OutcomeCode.ISSUED, "OutsideBounds"), waiting, waiting], [(OutcomeCode.ISSUED, "OutsideBounds"), waiting])
        assert found["vpa_ippr_resize_attempts_total",] == 2
        assert found["vpa_ippr_pod_outcomes_total", "ResizeIssued"] == 2
        assert found["vpa_ippr_pods", "ResizeDeferred"] == 1
        assert found["vpa_ippr_pods", "ResizeIssued"] == 1
        assert found["vpa_ippr_updater_cycle_seconds_count",] == 2

    def test_reasons_of_refusals_and_reverts(self):
        found = self.counted(
            [(OutcomeCode.REFUSED, "NodeFull"), (OutcomeCode.REFUSED, "SomethingNew")],
            [(OutcomeCode.REFUSED, "NodeFull"), (OutcomeCode.REVERTED, "DeferredTooLong")],
        )
        assert found["vpa_ippr_pods_held_back", "NodeFull"] == 1
        assert found["vpa_ippr_pods_held_back", "Other"] == 0
        assert found["vpa_ippr_resize_reverts_total", "DeferredTooLong"] == 1

    def test_what_disruption_budgets_were_charged_and_have_left(self):
        telemetry = Telemetry()
        updater = UpdaterTelemetry(telemetry)
        for disturbed, left in ((2, 3), (1, 0)):
            updater.timed(lambda disturbed=disturbed, left=left: UpdateResult((), disturbed, left))
        found = samples(telemetry)
        assert found["vpa_ippr_disruptions_total",] == 3
        assert found["vpa_ippr_disruption_budget",] == 0

    def test_how_long_a_resize_took(self):
        found = self.counted([(OutcomeCode.COMPLETED, "", "", 7.0), (OutcomeCode.COMPLETED, "", "", 3.0)])
        assert found["vpa_ippr_resize_seconds_sum",] == 10.0
        assert found["vpa_ippr_resize_seconds_bucket", "5.0"] == 1

    def test_reliefs_and_those_who_get_none(self):
        telemetry = Telemetry()
        updater = UpdaterTelemetry(telemetry)
        relieved = (OutcomeCode.RELIEVED, "NearLimit", "", 1.5)
        for outcomes in ([relieved, (OutcomeCode.NOT_RELIEVED, "NodeFull")], [(OutcomeCode.NOT_RELIEVED, "LeakSuspected")]):
            updater.relieved(lambda outcomes=outcomes: UpdateResult(tuple(PodOutcome(POD, None, *one) for one in outcomes)))
        found = samples(telemetry)
        assert found["vpa_ippr_relief_seconds_bucket", "2.0"] == found["vpa_ippr_relief_seconds_count",] == 1
        assert found["vpa_ippr_pod_outcomes_total", "MemoryRelieved"] == found["vpa_ippr_resize_attempts_total",] == 1
        assert found["vpa_ippr_containers_not_relieved", "NodeFull"] == 0  # as of the last round
        assert found["vpa_ippr_containers_not_relieved", "LeakSuspected"] == 1
        assert found["vpa_ippr_resize_seconds_count",] == 0
        updater.timed(lambda: UpdateResult((PodOutcome(POD, None, *relieved),)))
        found = samples(telemetry)
        assert found["vpa_ippr_relief_seconds_count",] == 2
        assert found["vpa_ippr_containers_not_relieved", "LeakSuspected"] == 0
