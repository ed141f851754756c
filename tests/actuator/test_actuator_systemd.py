"""The guard through systemd: a bus on a socket, and a cgroup of plain files that the systemd behind it rewrites as the real one does."""

import os
import shutil
import socket
import subprocess
from contextlib import closing

import pytest
from cgroup_tree import ID, UID, UID_, FakeHelper, make_cgroup, make_node
from fake_bus import INFINITY, FakeBus

from vpa_ippr.actuator.cgroupfs import CgroupFs, CgroupFsFinder
from vpa_ippr.actuator.dbus import SystemBus, escape
from vpa_ippr.actuator.journal import Entry
from vpa_ippr.actuator.node_cgroups import NodeCgroups
from vpa_ippr.actuator.systemd import RETRY_SECONDS, GuardWriter, unit_of
from vpa_ippr.api.errors import ActuatorError
from vpa_ippr.api.shrink import Phase

MIB = 1 << 20
UNIT = f"cri-containerd-{ID}.scope"
OBJECT = f"cri_2dcontainerd_2d{ID}_2escope"
PATH = ("kubepods.slice", f"kubepods-pod{UID_}.slice", UNIT)
GROUP = "/" + "/".join(PATH)
LIMIT = 256 * MIB
GUARD = 200 * MIB


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def bus(tmp_path):
    fake = FakeBus(tmp_path / "bus")
    yield fake
    fake.close()


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def writer(bus, time):
    return GuardWriter(SystemBus(bus.path, timeout_seconds=5.0), time, page_bytes=4096)


@pytest.fixture
def scope(tmp_path, bus):
    """The container's directory, which systemd rewrites from its own store whenever a property is set."""
    path = make_cgroup(tmp_path / UNIT, memory__oom__group="1\n", memory__swap__max="0\n", memory__low="0\n")
    unit = bus.add(OBJECT, UNIT, GROUP, MemoryMax=LIMIT)
    unit["writes"] = []

    def apply(values):
        unit["writes"].append(values["MemoryHigh"])
        for name, key in (("memory.high", "MemoryHigh"), ("memory.max", "MemoryMax")):
            text = "max" if values[key] == INFINITY else str(values[key] // 4096 * 4096)
            (path / name).write_text(text + "\n")
        (path / "memory.oom.group").write_text("0\n")

    bus.apply = apply
    return path


def open_scope(path, writer) -> CgroupFs:
    return CgroupFs(os.open(path, os.O_PATH), str(path), FakeHelper(), writer.unit_at(PATH))


def line(path, name):
    return (path / name).read_text().split("\n")[0]


@pytest.mark.parametrize(
    ("component", "unit"),
    [
        (UNIT, UNIT),
        ("kubepods-burstable.slice", "kubepods-burstable.slice"),
        ("containerd.service", "containerd.service"),
        ("_memory.slice", "memory.slice"),
        ("__x.scope", "_x.scope"),
        ("machine-qemu\\x2d1.scope", "machine-qemu\\x2d1.scope"),
        (ID, None),
        ("crio-" + ID, None),
        ("container", None),
        (".slice", None),
        ("scope", None),
    ],
)
def test_unit_of_a_cgroup(component, unit):
    assert unit_of(component) == unit


@pytest.mark.parametrize(
    ("unit", "escaped"),
    [
        ("cri-containerd-0a.scope", "cri_2dcontainerd_2d0a_2escope"),
        ("0a.scope", "_30a_2escope"),
        ("machine-qemu\\x2d1.scope", "machine_2dqemu_5cx2d1_2escope"),
        ("a_b.slice", "a_5fb_2eslice"),
        ("é.slice", "_c3_a9_2eslice"),
        ("", "_"),
    ],
)
def test_unit_as_an_object_path(unit, escaped):
    assert escape(unit) == escaped


def test_guard_goes_through_systemd_and_back(bus, scope, writer):
    cgroup = open_scope(scope, writer)
    cgroup.write_high(GUARD)
    assert cgroup.read().high_bytes == GUARD
    assert bus.sets == [(UNIT, True, {"MemoryHigh": GUARD})]
    cgroup.write_high(None)
    assert cgroup.read().high_bytes is None
    assert bus.sets[1:] == [(UNIT, True, {"MemoryHigh": INFINITY})]


def test_what_systemd_writes_along_is_put_back(scope, writer):
    cgroup = open_scope(scope, writer)
    cgroup.write_high(GUARD)
    assert (line(scope, "memory.oom.group"), line(scope, "memory.swap.max"), line(scope, "memory.max")) == ("1", "0", str(LIMIT))
    cgroup.write_high(None)
    assert line(scope, "memory.oom.group") == "1"


def test_limit_that_systemd_does_not_know_is_not_undone(bus, scope, writer):
    (scope / "memory.max").write_text(f"{LIMIT - MIB}\n")
    cgroup = open_scope(scope, writer)
    cgroup.write_high(GUARD)
    assert bus.sets == []
    assert (line(scope, "memory.high"), line(scope, "memory.max")) == (str(GUARD), str(LIMIT - MIB))
    cgroup.write_high(None)
    assert bus.sets == []
    assert line(scope, "memory.high") == "max"


def test_limit_set_by_file_while_systemd_holds_the_guard_survives_the_restore(bus, scope, writer):
    cgroup = open_scope(scope, writer)
    cgroup.write_high(GUARD)
    (scope / "memory.max").write_text(f"{GUARD}\n")
    cgroup.write_high(None)
    assert bus.sets[-1] == (UNIT, True, {"MemoryHigh": INFINITY, "MemoryMax": GUARD})
    assert (line(scope, "memory.high"), line(scope, "memory.max")) == ("max", str(GUARD))


def test_limit_that_is_no_page_multiple_is_the_kernels_after_rounding(bus, scope, writer):
    next(iter(bus.units.values()))["MemoryMax"] = LIMIT + 1
    open_scope(scope, writer).write_high(GUARD)
    assert len(bus.sets) == 1


@pytest.mark.parametrize("usage", [GUARD, GUARD + MIB])
def test_guard_below_usage_is_never_left_to_pid_1(bus, scope, writer, usage):
    (scope / "memory.current").write_text(f"{usage}\n")
    open_scope(scope, writer).write_high(GUARD)
    assert bus.asked == []
    assert line(scope, "memory.high") == str(GUARD)


def test_original_below_usage_is_not_left_to_pid_1_either(bus, scope, writer):
    next(iter(bus.units.values()))["MemoryHigh"] = 220 * MIB
    (scope / "memory.high").write_text(f"{220 * MIB}\n")
    cgroup = open_scope(scope, writer)
    cgroup.write_high(GUARD)
    (scope / "memory.current").write_text(f"{230 * MIB}\n")
    with pytest.raises(ActuatorError, match="PID 1"):
        cgroup.write_high(220 * MIB)
    assert len(bus.sets) == 1
    assert line(scope, "memory.high") == str(220 * MIB)


@pytest.mark.parametrize("original", [INFINITY, 220 * MIB])
def test_property_goes_back_to_what_it_was_also_where_the_file_was_something_else(bus, scope, writer, original):
    next(iter(bus.units.values()))["MemoryHigh"] = original
    (scope / "memory.high").write_text(f"{240 * MIB}\n")
    cgroup = open_scope(scope, writer)
    cgroup.write_high(GUARD)
    cgroup.write_high(240 * MIB)
    assert next(iter(bus.units.values()))["MemoryHigh"] == original
    assert line(scope, "memory.high") == str(240 * MIB)


def test_unit_of_another_systemd_is_written_by_file_and_not_asked_about_again(bus, scope, writer):
    next(iter(bus.units.values()))["ControlGroup"] = "/docker/x" + GROUP
    cgroup = open_scope(scope, writer)
    cgroup.write_high(GUARD)
    cgroup.write_high(GUARD - MIB)
    assert (bus.sets, bus.sessions) == ([], 1)
    assert line(scope, "memory.high") == str(GUARD - MIB)


def test_unit_that_systemd_does_not_know_is_written_by_file(bus, scope, writer):
    bus.units.clear()
    open_scope(scope, writer).write_high(GUARD)
    assert bus.sets == []
    assert line(scope, "memory.high") == str(GUARD)


def test_systemd_that_says_yes_and_does_nothing_is_seen_by_read_back(bus, scope, writer):
    bus.apply = lambda _values: None
    open_scope(scope, writer).write_high(GUARD)
    assert line(scope, "memory.high") == str(GUARD)


def break_bus(bus: FakeBus, how: str, member: str = "SetUnitProperties") -> None:
    match how:
        case "refuses us":
            bus.auth = b"REJECTED KERBEROS\r\n"
        case "talks gibberish":
            bus.auth = b"220 smtp.example.com\r\n"
        case "hangs up":
            bus.hang_up_on = member
        case "answers garbage":
            bus.garbage_on = member
        case "error reply":
            bus.refuse[member] = "org.freedesktop.DBus.Error.AccessDenied"
        case "is gone":
            bus.close()
            bus.path.unlink()


FAILURES = [
    ("refuses us", "BusUnavailable", "refuses user"),
    ("talks gibberish", "BusUnavailable", "refuses user"),
    ("hangs up", "BusUnavailable", "closed by the bus"),
    ("answers garbage", "BusUnavailable", "cannot be understood"),
    ("error reply", "BusRefused", "AccessDenied"),
    ("is gone", "BusUnavailable", "No such file"),
]


@pytest.mark.parametrize(("how", "reason", "text"), FAILURES, ids=[how for how, _, _ in FAILURES])
def test_every_failure_of_the_bus_is_one_clear_error(bus, how, reason, text):
    break_bus(bus, how)

    def ask():
        with SystemBus(bus.path, timeout_seconds=5.0).session() as session:
            session.set_unit_properties(UNIT, {"MemoryHigh": 1})

    with pytest.raises(ActuatorError, match=text) as caught:
        ask()
    assert caught.value.reason == reason
    assert str(bus.path) in str(caught.value)


@pytest.mark.parametrize("member", ["Hello", "Get"])
def test_bus_that_does_not_answer_is_given_up_after_its_time(bus, member):
    bus.silent_on = member

    def ask():
        with SystemBus(bus.path, timeout_seconds=0.05).session() as session:
            session.unit_property(UNIT, "MemoryMax")

    with pytest.raises(ActuatorError, match="no answer in time") as caught:
        ask()
    assert caught.value.reason == "BusUnavailable"


def test_one_deadline_holds_for_the_whole_session(bus):
    """Steps that are each quick must not add up."""
    bus.add(OBJECT, UNIT, GROUP)
    ticks = iter([0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.01])

    def ask():
        with SystemBus(bus.path, timeout_seconds=1.0, monotonic=lambda: next(ticks)).session() as session:
            for _ in range(9):
                session.unit_property(UNIT, "MemoryMax")

    with pytest.raises(ActuatorError, match="no answer in time"):
        ask()


def test_bus_whose_queue_is_full_does_not_hold_the_agent_up(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "bus"))
        server.listen()

        def ask():
            with SystemBus(tmp_path / "bus", timeout_seconds=0.05).session():
                pass

        with pytest.raises(ActuatorError, match="no answer in time"):
            ask()


@pytest.mark.parametrize("how", [how for how, _, _ in FAILURES])
def test_guard_is_written_by_file_where_the_bus_fails(bus, scope, writer, how):
    break_bus(bus, how)
    cgroup = open_scope(scope, writer)
    cgroup.write_high(GUARD)
    assert line(scope, "memory.high") == str(GUARD)
    assert writer.is_resting()


def test_bus_that_failed_is_let_alone_for_a_while(bus, scope, writer, time):
    bus.refuse["Hello"] = "org.freedesktop.DBus.Error.LimitsExceeded"
    first, second = open_scope(scope, writer), open_scope(scope, writer)
    first.write_high(GUARD)
    second.write_high(GUARD - MIB)
    assert bus.sessions == 1
    time.now += RETRY_SECONDS
    second.write_high(GUARD - 2 * MIB)
    assert bus.sessions == 2


def test_same_trouble_is_a_warning_once(scope, bus, writer, time, caplog):
    break_bus(bus, "refuses us")
    cgroup = open_scope(scope, writer)
    for guard in (GUARD, GUARD - MIB, GUARD - 2 * MIB):
        cgroup.write_high(guard)
        time.now += RETRY_SECONDS
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    break_bus(bus, "is gone")
    cgroup.write_high(GUARD)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_systemd_that_refused_the_guard_has_nothing_to_give_back(bus, scope, writer, time):
    bus.refuse["SetUnitProperties"] = "org.freedesktop.DBus.Error.AccessDenied"
    cgroup = open_scope(scope, writer)
    cgroup.write_high(GUARD)
    time.now += RETRY_SECONDS
    cgroup.write_high(None)
    assert bus.asked.count("SetUnitProperties") == 1
    assert cgroup.read().high_bytes is None


@pytest.mark.parametrize("how", ["hangs up", "error reply", "refuses us"])
def test_guard_that_systemd_still_holds_is_owed_until_it_is_taken_back(bus, scope, writer, time, how):
    """Systemd would write it again at the next resize: the shrink is not over before that is impossible."""
    cgroup = open_scope(scope, writer)
    cgroup.write_high(GUARD)
    break_bus(bus, how)
    for _ in range(2):
        with pytest.raises(ActuatorError, match="systemd still holds the guard"):
            cgroup.write_high(None)
        assert line(scope, "memory.high") == "max"
        assert cgroup.read().high_bytes == GUARD
        time.now += RETRY_SECONDS / 2
    bus.hang_up_on, bus.refuse, bus.auth = None, {}, b"OK 1\r\n"
    cgroup.write_high(None)
    assert cgroup.read().high_bytes is None
    assert next(iter(bus.units.values()))["MemoryHigh"] == INFINITY


def test_answer_that_never_came_may_have_been_a_yes(bus, scope, writer, time):
    cgroup = open_scope(scope, writer)
    bus.hang_up_on = "SetUnitProperties"
    cgroup.write_high(GUARD)
    bus.hang_up_on = None
    time.now += RETRY_SECONDS
    cgroup.write_high(None)
    assert bus.sets == [(UNIT, True, {"MemoryHigh": INFINITY})]


def test_unit_that_is_gone_holds_nothing(bus, scope, writer):
    cgroup = open_scope(scope, writer)
    cgroup.write_high(GUARD)
    bus.units.clear()
    cgroup.write_high(None)
    assert cgroup.read().high_bytes is None


@pytest.mark.parametrize("kernel_has", [GUARD, None], ids=["guard stands", "owed"])
def test_agent_that_comes_after_puts_the_property_back(bus, scope, writer, kernel_has):
    before = open_scope(scope, writer)
    kept = before.unit_high()
    assert kept == "max"
    before.write_high(GUARD)
    (scope / "memory.high").write_text("max\n" if kernel_has is None else f"{kernel_has}\n")
    after = open_scope(scope, writer)
    after.take_over(kept, GUARD)
    assert after.read().high_bytes == GUARD
    after.write_high(None)
    assert after.read().high_bytes is None
    assert next(iter(bus.units.values()))["MemoryHigh"] == INFINITY


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, "max"),
        ({"MemoryHigh": GUARD}, str(GUARD)),
        ({"MemoryMax": GUARD}, None),
        ({"ControlGroup": "/elsewhere"}, None),
    ],
)
def test_what_the_journal_keeps(bus, scope, writer, change, kept):
    next(iter(bus.units.values())).update(change)
    cgroup = open_scope(scope, writer)
    assert cgroup.unit_high() == kept
    assert bus.sets == []


def test_what_the_journal_keeps_without_a_bus(bus, scope, writer):
    break_bus(bus, "is gone")
    assert open_scope(scope, writer).unit_high() is None


def test_removed_cgroup_is_left_alone(bus, scope, writer):
    cgroup = open_scope(scope, writer)
    for file in scope.iterdir():
        file.unlink()
    cgroup.write_high(GUARD)
    cgroup.write_high(None)
    assert bus.sets == []


@pytest.mark.parametrize(("layout", "is_told"), [("/".join(PATH), True), (f"kubepods/burstable/pod{UID}/{ID}", False)])
def test_finder_tells_systemd_of_units_alone(tmp_path, bus, writer, layout, is_told):
    root, proc = make_node(tmp_path)
    make_cgroup(root / layout)
    bus.add(OBJECT, UNIT, GROUP, MemoryMax=LIMIT)
    finder = CgroupFsFinder(root, proc, FakeHelper(), writer)
    finder.find(UID, f"containerd://{ID}", "Guaranteed" if is_told else "Burstable").write_high(GUARD)
    finder.close()
    assert bool(bus.sets) is is_told


@pytest.mark.parametrize(("unit_high", "identity", "owed"), [("max", 0, GUARD), (None, 0, None), ("max", 1, None)])
def test_entry_of_the_journal_says_what_systemd_still_holds(tmp_path, bus, writer, unit_high, identity, owed):
    root, proc = make_node(tmp_path)
    path = make_cgroup(root / "/".join(PATH))
    entry = Entry(
        boot_id="b",
        shrink_uid="1",
        namespace="default",
        name="web",
        pod_name="web-1",
        pod_uid=UID,
        container_name="app",
        container_id=f"containerd://{ID}",
        qos_class="Guaranteed",
        cgroup_identity=path.stat().st_ino + identity,
        original_high_bytes=None,
        original_max_bytes=LIMIT,
        target_bytes=GUARD,
        guard_bytes=GUARD,
        previous_guard_bytes=None,
        phase=Phase.HOLDING,
        started_at=0.0,
        deadline_at=900.0,
        unit_high=unit_high,
    )
    with closing(CgroupFsFinder(root, proc, FakeHelper(), writer)) as finder, closing(NodeCgroups(finder, root, proc, writer)) as cgroups:
        assert cgroups.of_entry(entry).read().high_bytes == owed


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="no dbus-daemon is installed: apt install dbus-daemon")
def test_a_real_bus_lets_us_in_and_tells_that_there_is_no_systemd(tmp_path):
    address = tmp_path / "bus"
    config = tmp_path / "bus.conf"
    rules = '<allow send_destination="*" eavesdrop="true"/><allow receive_sender="*"/><allow user="*"/>'
    listen = f"<type>custom</type><listen>unix:path={address}</listen><auth>EXTERNAL</auth>"
    config.write_text(f'<busconfig>{listen}<policy context="default">{rules}</policy></busconfig>')
    command = ["dbus-daemon", f"--config-file={config}", "--nofork", "--print-address=1", "--nopidfile"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as daemon:
        try:
            assert daemon.stdout.readline().startswith(b"unix:path=")

            def ask():
                with SystemBus(address, timeout_seconds=10.0).session() as session:
                    session.unit_property(UNIT, "MemoryMax")

            with pytest.raises(ActuatorError, match="ServiceUnknown") as caught:
                ask()
            assert caught.value.reason == "BusRefused"
        finally:
            daemon.terminate()
