"""The recommender's jobs: what they leave in the cluster and in the report's file, over time that the test keeps."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import yaml

from support.cli import START, FakePrometheus, run
from support.ensembles import CPU_RULES, an_ensemble_profile
from support.http import scripted_server
from support.sandbox import CHECKPOINTS, VPAS, controller_spec, owner_of, running_sandbox, vpa_spec
from support.usage_grids import SMALL_TRAINING, daily
from vpa_ippr.api.errors import EXIT_DONE, EXIT_PARTIAL, UsageError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.names import ANNOTATION_EXPLANATION
from vpa_ippr.api.series import Finding
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.cli.files import write_whole
from vpa_ippr.cli.recommender_jobs import Retraining, Timing, jobs_of, read_model, run_once
from vpa_ippr.forecast.catalogue import default_directory
from vpa_ippr.forecast.ensemble_state import fingerprint
from vpa_ippr.forecast.forecasters import profile_model
from vpa_ippr.forecast.rules import Expert
from vpa_ippr.forecast.training import train
from vpa_ippr.recommend.cycle import CheckpointResult, CycleResult, VpaOutcome
from vpa_ippr.recommend.forecasts import ANNOTATION_FORECAST
from vpa_ippr.recommend.retraining import Verdict
from vpa_ippr.sandbox.node import NodeSpec

AMOUNTS = {"cpu": "500m", "memory": "1Gi"}


class Clock:
    """Moves when it is waited for, until ``end``."""

    def __init__(self, seconds):
        self.moment, self.end = float(START), START + seconds

    def now(self):
        return self.moment

    def wait_until(self, moment):
        if moment > self.end:
            return False
        self.moment = moment
        return True

    def stop(self):
        self.end = self.moment


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch, tmp_path):
    for name in ("PROMETHEUS_URL", "KUBECONFIG", "VPA_IPPR_LOG_LEVEL", "VPA_IPPR_CLOCK_URL", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """StatefulSet ``web`` in ``shop`` with a pod and a VPA."""
    with running_sandbox(tmp_path_factory.mktemp("jobs"), kubelet=False, tls=False, nodes=[NodeSpec("n1", 4000, 8 << 30)]) as running:
        owner = running.create("statefulsets.apps", "shop", "web", spec={**controller_spec("web"), "serviceName": "web"})
        running.pod("shop", "web-0", owner=owner_of(owner), requests=AMOUNTS, limits=AMOUNTS)
        running.create(VPAS, "shop", "web", spec=vpa_spec("StatefulSet", "web", updatePolicy={"updateMode": "InPlace"}))
        yield running


@pytest.fixture
def recommend_for(cluster, monkeypatch):
    """Runs the recommender for so many seconds with these flags; ``profile`` None leaves the default."""

    def running(seconds, *flags, profile="vpa-classic"):
        monkeypatch.setattr("vpa_ippr.cli.options.make_clock", lambda *_: Clock(seconds))
        with scripted_server(FakePrometheus()) as server:
            source = ("--prometheus-url", server.url, "--query-retries", 0, "--history", "2h")
            named = () if profile is None else ("--profile", profile)
            return run("recommender", "--kubeconfig", cluster.kubeconfig, *source, *named, *flags)

    return running


def lines(outcome, text):
    return [line for line in outcome.error_lines if text in line]


def test_cycles_come_at_their_interval_and_checkpoints_at_theirs_and_at_the_end(cluster, recommend_for):
    outcome = recommend_for(290, "--checkpoint-interval", "3m")
    assert (outcome.code, outcome.out) == (EXIT_DONE, "")
    said = [line.split(": ", 1)[1].split(" ")[0] for line in outcome.error_lines]
    assert said == ["cycle", "checkpoints", "cycle", "cycle", "cycle", "checkpoints", "cycle", "checkpoints"]
    (checkpoint,) = cluster.store.list(CHECKPOINTS, "shop")
    assert checkpoint["status"]["lastUpdateTime"] == format_time(START + 240)


def test_the_report_file_is_kept_up_to_date(recommend_for, tmp_path):
    path = tmp_path / "report.json"
    outcome = recommend_for(130, "--report-file", path, "--report-interval", "2m")
    assert outcome.code == EXIT_DONE
    assert len(lines(outcome, "report written")) == 2
    report = json.loads(path.read_text())
    assert (report["schema"], report["as_of"]) == ("vpa-ippr/report/v1", format_time(START + 120))
    assert [(item["namespace"], item["target"]["cpu_millicores"]) for item in report["items"]] == [("shop", 587)]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("named", "profile"), [(None, "balanced"), ("vpa-classic", "vpa-classic")], ids=["the default", "named"])
def test_the_default_profile_is_balanced(cluster, recommend_for, named, profile):
    assert recommend_for(0, "--once", profile=named).code == EXIT_DONE
    explained = cluster.store.get(VPAS, "shop", "web")["metadata"]["annotations"][ANNOTATION_EXPLANATION]
    assert json.loads(explained)["profile"] == profile


def test_a_report_that_cannot_be_written_is_told_and_stops_nothing(recommend_for, tmp_path):
    outcome = recommend_for(130, "--report-file", tmp_path / "nowhere" / "report.json", "--report-interval", "1m")
    assert outcome.code == EXIT_DONE
    told = lines(outcome, "job failed job=report reason=FileNotWritten")
    assert len(told) == len(lines(outcome, "cycle done")) == 3
    assert "No such file or directory" in told[0]


def test_operators_maximum_and_rounding_are_in_the_status(cluster, recommend_for):
    outcome = recommend_for(
        0, "--once", "--max-allowed-memory", "100M", "--round-cpu-millicores", 250, "--round-memory-bytes", 2**20, "--humanize-memory"
    )
    assert outcome.code == EXIT_DONE
    (found,) = cluster.store.get(VPAS, "shop", "web")["status"]["recommendation"]["containerRecommendations"]
    assert found["target"] == {"cpu": "750m", "memory": "100M"}
    assert found["uncappedTarget"]["memory"].endswith("Mi")
    recommend_for(0, "--once", "--max-allowed-cpu", "400m")
    (found,) = cluster.store.get(VPAS, "shop", "web")["status"]["recommendation"]["containerRecommendations"]
    assert found["target"]["cpu"] == "400m"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--max-allowed-cpu", "lots"), "cannot read 'lots' as a quantity"),
        (("--max-allowed-memory", "0"), "'0' is not above 0"),
        (("--round-cpu-millicores", "0"), "--round-cpu-millicores"),
    ],
)
def test_bad_usage(recommend_for, flags, message):
    outcome = recommend_for(0, *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert len(outcome.error_lines) == 1
    assert message in outcome.err


def test_there_must_be_a_model_to_retrain(recommend_for, tmp_path):
    (tmp_path / "vpa-classic.yaml").write_text((default_directory() / "vpa-classic.yaml").read_text())
    outcome = recommend_for(0, "--retrain-interval", "1d", "--models", tmp_path)
    assert (outcome.code, outcome.out) == (2, "")
    assert "--retrain-interval: no profile of the catalogue has a model" in outcome.err


@pytest.fixture
def boosted(tmp_path):
    """The flags for an ensemble profile with a small model, the profile, and a function that gives another model."""
    rules = msgspec.structs.replace(CPU_RULES, experts=(Expert("gradient-boosting", 0.9, 1.1), *CPU_RULES.experts))
    profile = an_ensemble_profile(history_days=2, replay_hours=2, cpu=rules, model="old.skops")
    (tmp_path / "test-ensemble.yaml").write_text(yaml.safe_dump(msgspec.to_builtins(profile, str_keys=True)))

    def model(seed):
        return train([daily(6, 9, seed=seed)], replace(SMALL_TRAINING, rows=800, iterations=2)).save()

    (tmp_path / "old.skops").write_bytes(model(1))
    return ("--models", tmp_path, "--profile", profile.name), profile, model


def mark_in(cluster):
    """The fingerprint under which the CPU's state was checkpointed."""
    (checkpoint,) = cluster.store.list(CHECKPOINTS, "shop")
    return json.loads(checkpoint["metadata"]["annotations"][ANNOTATION_FORECAST])["cpu"]["state"]["mark"]


def test_a_better_model_is_kept_in_the_file_and_used_by_the_next_start(cluster, recommend_for, boosted, tmp_path, monkeypatch):
    flags, profile, model = boosted
    better, path = model(2), tmp_path / "own.skops"
    rules = profile.ensemble.cpu
    verdict = Verdict(Finding("ModelAdopted", "model", 1, "loss -8.0%"), profile_model(better), better)
    monkeypatch.setattr("vpa_ippr.recommend.service.retrain", lambda *_: verdict)
    retraining = (*flags, "--retrain-interval", "1h", "--model-file", path)
    outcome = recommend_for(0, *retraining)
    assert outcome.code == EXIT_DONE
    assert len(lines(outcome, "no model in the file yet")) == 1
    assert f"retrained reason=ModelAdopted verdict=loss -8.0% kept_in={path}\n" in outcome.err
    assert path.read_bytes() == better
    assert mark_in(cluster) == fingerprint(rules, profile_model(better)) != fingerprint(rules, profile_model(model(1)))
    again = recommend_for(0, *retraining)
    assert (again.code, lines(again, "retrained"), lines(again, "not done")) == (EXIT_DONE, [], [])
    assert mark_in(cluster) == fingerprint(rules, profile_model(better))


def test_without_a_file_a_better_model_lives_in_memory_and_it_is_said(recommend_for, boosted, monkeypatch):
    flags, _, model = boosted
    verdict = Verdict(Finding("ModelAdopted", "model", 1, "loss -8.0%"), profile_model(model(2)), b"unused")
    monkeypatch.setattr("vpa_ippr.recommend.service.retrain", lambda *_: verdict)
    outcome = recommend_for(0, *flags, "--retrain-interval", "1h")
    assert "kept_in=memory only, until the recommender stops\n" in outcome.err


def test_too_little_history_is_said_and_changes_nothing(recommend_for, boosted, tmp_path):
    flags, _, _ = boosted
    outcome = recommend_for(7200, *flags, "--interval", "1h", "--retrain-interval", "1h", "--model-file", tmp_path / "own.skops")
    assert outcome.code == EXIT_DONE
    assert len(lines(outcome, "retrained reason=TooLittleData")) == 3
    assert not (tmp_path / "own.skops").exists()


@pytest.mark.parametrize(("content", "reason"), [(b"PK", "ModelCorrupt"), (None, "ModelUnreadable")], ids=["damaged", "a directory"])
def test_a_model_file_that_cannot_be_used_is_told_and_the_profiles_is_used(caplog, tmp_path, content, reason):
    path = tmp_path / "own.skops"
    path.mkdir() if content is None else path.write_bytes(content)
    assert read_model(path) is None
    assert [record.reason for record in caplog.records] == [reason]


def test_a_model_of_other_levels_is_not_used(caplog, tmp_path):
    path = tmp_path / "own.skops"
    path.write_bytes(train([daily(6, 9)], replace(SMALL_TRAINING, rows=800, iterations=2, levels=(0.5, 0.9))).save())
    assert read_model(path) is None
    assert [record.reason for record in caplog.records] == ["ModelIncompatible"]


def test_what_cannot_be_written_is_not_adopted(tmp_path):
    class Trained:
        def retrain(self):
            return Verdict(Finding("ModelAdopted", "model", 1, "better"), "model", b"model")

    with pytest.raises(UsageError) as caught:
        Retraining(Trained(), tmp_path / "nowhere" / "own.skops", waits=False)()
    assert caught.value.reason == "FileNotWritten"


class Service:
    """Recommends for one VPA; its checkpoints fail with ``failures``."""

    def __init__(self, *failures):
        self.failures = failures
        self.calls = []

    def run_cycle(self):
        self.calls.append("cycle")
        return CycleResult(0.0, (VpaOutcome(ObjectKey("shop", "web"), None, ("recommendation",)),))

    def write_checkpoints(self):
        self.calls.append("checkpoint")
        return CheckpointResult(1, self.failures)


def test_the_jobs_in_their_order():
    service, done = Service(), []
    timing = Timing(60.0, 600.0, 86_400.0, 3600.0, 5.0)
    jobs = jobs_of(service, timing, retrain=lambda: done.append("retrain"), report=lambda: done.append("report"))
    assert [(job.name, job.interval_seconds, job.jitter_seconds) for job in jobs] == [
        ("cycle", 60.0, 5.0), ("checkpoint", 600.0, 0.0), ("retrain", 86_400.0, 0.0), ("report", 3600.0, 0.0),
    ]  # fmt: skip
    for job in jobs:
        job.run()
    assert (service.calls, done) == (["cycle", "checkpoint"], ["retrain", "report"])


def test_what_is_not_asked_for_is_no_job():
    jobs = jobs_of(Service(), Timing(60.0, 600.0, None, 3600.0, 0.0), retrain=lambda: None, report=None)
    assert [job.name for job in jobs] == ["cycle", "checkpoint"]
    with pytest.raises(UsageError, match="no profile of the catalogue has a model") as caught:
        jobs_of(Service(), Timing(60.0, 600.0, 1.0, 3600.0, 0.0), retrain=None, report=None)
    assert caught.value.reason == "NothingToRetrain"


@pytest.mark.parametrize(
    ("failures", "code"), [((), EXIT_DONE), ((Finding("Forbidden", "checkpoints of vpa shop/web", 1, "403"),), EXIT_PARTIAL)]
)
def test_a_checkpoint_that_cannot_be_written_makes_one_cycle_partial(caplog, failures, code):
    service = Service(*failures)
    assert run_once(service) == code
    assert service.calls == ["cycle", "checkpoint"]
    assert [record.reason for record in caplog.records if record.levelname == "WARNING"] == [failure.reason for failure in failures]


def test_a_file_is_replaced_whole_and_follows_links(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_whole(link, "new")
    assert (link.is_symlink(), real.read_text(), real.stat().st_mode & 0o777) == (True, "new", 0o644)
    write_whole(real, b"\x00")
    assert real.read_bytes() == b"\x00"
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link"}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UsageError, match="No space left on device") as caught:
        write_whole(path, "new")
    assert caught.value.reason == "FileNotWritten"
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])


def test_a_file_may_be_a_device():
    write_whole(Path("/dev/null"), "gone")
