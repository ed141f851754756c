"""Leader election as the commands use it: jobs run only while leading, in real and in simulated time, and what the options say."""

import contextlib
import signal
import threading

import pytest
from test_cli_schedule import START, Diary, SteppedClock, diary, stop_process

from support.cli import dead_address, run
from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.errors import UsageError
from vpa_ippr.cli.leading import open_leading, pod_namespace, writing_rest
from vpa_ippr.cli.options import LeaderOptions
from vpa_ippr.cli.schedule import Job, run_jobs
from vpa_ippr.cluster.lease import NotLeadingError
from vpa_ippr.cluster.rest import Connection, Ignored
from vpa_ippr.cluster.telemetry import Telemetry


class Spans:
    """Leads within the spans given, in seconds from the start; a step each two seconds."""

    def __init__(self, clock, *spans):
        self.clock, self.spans = clock, spans
        self.stopped = False

    def is_leader(self):
        return not self.stopped and any(begin <= self.clock.now() - START < end for begin, end in self.spans)

    def advance(self):
        return self.clock.now() + 2.0

    def stop(self):
        self.stopped = True


def test_in_step_jobs_run_only_while_leading_and_at_once_when_it_begins():
    told = diary(400)
    leading = Spans(told.clock, (100, 200), (290, 1000))
    run_jobs([told.job("cycle", 60.0), told.job("report", 1000.0)], told.clock, leading=leading)
    assert told.entries == [
        ("cycle", 100), ("report", 100), ("cycle", 120), ("cycle", 180), ("cycle", 290), ("cycle", 300), ("cycle", 360),
    ]  # fmt: skip
    assert leading.stopped


@pytest.mark.parametrize(("spans", "ends"), [([(0, 1000)], ["end"]), ([(0, 50)], []), ([], [])], ids=["leading", "lost", "never"])
def test_in_step_the_end_is_for_the_leader(spans, ends):
    told, finished = diary(100), []
    run_jobs([told.job("cycle", 60.0)], told.clock, at_end=lambda: finished.append("end"), leading=Spans(told.clock, *spans))
    assert finished == ends


def test_a_job_that_outlives_its_leading_is_the_last_of_its_turn():
    clock = SteppedClock(10)
    told = Diary(clock)

    def take_long():
        clock.moment += 30.0

    run_jobs([told.job("cycle", 60.0, take_long), told.job("report", 60.0)], clock, leading=Spans(clock, (0, 20)))
    assert told.entries == [("cycle", 0)]


class Switch:
    """Leads when told, and says so, as the thread of an election would."""

    def __init__(self):
        self.leads, self.changed, self.stops = False, None, 0
        self.started, self.refused = threading.Event(), threading.Event()

    def is_leader(self):
        if not self.leads:
            self.refused.set()
        return self.leads

    def start(self, changed):
        self.changed = changed
        self.started.set()

    def turn(self, leads):
        self.leads = leads
        self.refused.clear()
        self.changed()

    def stop(self):
        self.stops += 1


def test_on_the_machines_clock_jobs_begin_in_order_when_leading_does_and_pause_when_it_ends():
    switch, ran, told = Switch(), [], threading.Event()

    def cycle():
        ran.append("cycle")

    def report():
        ran.append("report")
        told.set()

    def operate():
        with contextlib.ExitStack() as at_last:
            at_last.callback(stop_process)
            work()

    def work():
        assert switch.started.wait(10.0)
        for _ in range(2):
            switch.turn(True)
            assert told.wait(10.0)
            switch.turn(False)
            assert switch.refused.wait(10.0)
            first.append(list(ran))
            ran.clear()
            told.clear()

    first = []
    operator = threading.Thread(target=operate)
    operator.start()
    run_jobs([Job("cycle", cycle, 1000.0), Job("report", report, 1000.0)], SystemClock(), leading=switch, at_end=lambda: ran.append("end"))
    operator.join()
    assert first == [["cycle", "report"]] * 2
    assert (ran, switch.stops) == ([], 1)


def test_a_signal_ends_a_process_that_never_led():
    switch = Switch()
    switch.start = lambda _changed: stop_process()
    run_jobs([Job("cycle", lambda: pytest.fail("must not run"), 0.01)], SystemClock(), leading=switch)
    assert switch.stops == 1


def test_a_process_is_warm_before_it_contends(caplog):
    told = diary(0)
    run_jobs([told.job("cycle", 60.0)], told.clock, leading=Spans(told.clock, (0, 9)), warm_up=lambda: told.entries.append("warm"))
    assert told.entries == ["warm", ("cycle", 0)]


def test_a_lease_is_given_back_after_a_signal_and_after_the_end():
    switch, order = Switch(), []
    switch.stop = lambda: order.append("given back")
    switch.start = lambda changed: (setattr(switch, "leads", True), changed())

    def cycle():
        signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)
        order.append("cycle")

    run_jobs([Job("cycle", cycle, 1000.0)], SystemClock(), leading=switch, at_end=lambda: order.append("end"))
    assert order == ["cycle", "end", "given back"]


# Options.

NOWHERE = Connection("http://127.0.0.1:1")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch, tmp_path):
    for name in ("POD_NAMESPACE", "KUBECONFIG", "VPA_IPPR_CLOCK_URL", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_there_is_no_election_unless_it_is_wanted():
    assert open_leading(LeaderOptions(False, "ns", "us"), NOWHERE, SystemClock(), once=False) is None
    assert open_leading(LeaderOptions(False, None, "us"), NOWHERE, SystemClock(), once=True) is None


@pytest.mark.parametrize(
    ("chosen", "once", "error"),
    [(LeaderOptions(True, "ns", "us"), True, "--once"), (LeaderOptions(True, None, "us"), False, "--leader-elect-namespace")],
    ids=["once", "no-namespace"],
)
def test_an_election_that_cannot_be_held_is_refused(chosen, once, error):
    with pytest.raises(UsageError, match=error):
        open_leading(chosen, NOWHERE, SystemClock(), once=once)


def test_the_namespace_is_that_of_the_pod(tmp_path, monkeypatch):
    file = tmp_path / "namespace"
    assert pod_namespace(file) is None
    file.write_text("from-file\n")
    assert pod_namespace(file) == "from-file"
    monkeypatch.setenv("POD_NAMESPACE", "from-env")
    assert pod_namespace(file) == "from-env"
    assert open_leading(LeaderOptions(True, None, "us"), NOWHERE, SystemClock(), once=False) is not None


def test_only_a_leader_writes_through_its_transport():
    leading = open_leading(LeaderOptions(True, "ns", "us"), NOWHERE, SystemClock(), once=False)
    telemetry = Telemetry()
    with pytest.raises(NotLeadingError):
        writing_rest(NOWHERE, leading, telemetry).create("/x", {}, Ignored)
    assert b"vpa_ippr_leading 0.0" in telemetry.render()[0]


@pytest.mark.parametrize("command", ["updater", "recommender"])
@pytest.mark.parametrize("listen", ["8080", "host:port", "host:70000", "::1:80"])
def test_an_address_that_cannot_be_listened_on_is_a_usage_error(command, listen):
    outcome = run(command, "--listen", listen)
    assert outcome.code == 2
    assert "HOST:PORT" in outcome.error_lines[0]


def kubeconfig(tmp_path):
    file = tmp_path / "kubeconfig"
    file.write_text(
        f"{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u}}}}],"
        f" clusters: [{{name: k, cluster: {{server: 'http://{dead_address()}'}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
    )
    return file


def test_the_options_reach_the_election(tmp_path):
    outcome = run("updater", "--kubeconfig", kubeconfig(tmp_path), "--leader-elect")
    assert (outcome.code, "--leader-elect-namespace" in outcome.err) == (2, True)
    outcome = run("updater", "--kubeconfig", kubeconfig(tmp_path), "--leader-elect", "--leader-elect-namespace", "ns", "--once")
    assert (outcome.code, "--once" in outcome.err) == (2, True)


def test_the_defaults_are_told():
    for command in ("updater", "recommender"):
        told = "".join(run(command, "--help").out.split())
        assert f"NameoftheLease.[default:vpa-ippr-{command}]" in told
        assert "otherswait.[default:no-leader-elect]" in told
