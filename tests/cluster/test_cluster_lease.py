"""Leader election by Lease: the rules, two and more contenders over the sandbox's API server, and a server that cannot be reached."""

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cli import dead_address
from support.http import Answer, scripted_server
from vpa_ippr.api.lease import Lease, LeaseSpec
from vpa_ippr.api.meta import ObjectKey, ObjectMeta
from vpa_ippr.cluster.election import Action, Observed, Terms, next_action, observe, spec_after, spec_given_back
from vpa_ippr.cluster.lease import Elector, Leading, NotLeadingError, admission_renewed_at, rest_for_leases
from vpa_ippr.cluster.rest import ApiError, Connection, Rest

LEASES = "leases.coordination.k8s.io"
TERMS = Terms()
WALL = 1_800_000_000.25


def lease(holder, *, seconds=15, renewed="2026-01-01T00:00:00.000000Z", transitions=3):
    return Lease(ObjectMeta(name="l", namespace="n"), LeaseSpec(holder, seconds, "2025-01-01T00:00:00.000000Z", renewed, transitions))


# The rules.


@pytest.mark.parametrize(
    ("found", "since", "now", "action"),
    [
        pytest.param(None, None, 100.0, Action.CREATE, id="none-yet"),
        pytest.param(lease("me"), None, 100.0, Action.RENEW, id="mine"),
        pytest.param(lease("me"), 0.0, 100.0, Action.RENEW, id="mine-though-expired"),
        pytest.param(lease(""), None, 100.0, Action.TAKE, id="given-back"),
        pytest.param(lease(None), None, 100.0, Action.TAKE, id="never-held"),
        pytest.param(lease("other"), None, 100.0, Action.WAIT, id="seen-for-the-first-time"),
        pytest.param(lease("other"), 100.0, 114.9, Action.WAIT, id="not-expired"),
        pytest.param(lease("other"), 100.0, 115.0, Action.TAKE, id="expired"),
        pytest.param(lease("other", seconds=60), 100.0, 159.9, Action.WAIT, id="the-holder-promised-longer"),
        pytest.param(lease("other", seconds=None), 100.0, 115.0, Action.TAKE, id="no-duration"),
        pytest.param(lease("other", renewed="1999-01-01T00:00:00Z"), 100.0, 101.0, Action.WAIT, id="holders-clock-is-late"),
        pytest.param(lease("other", renewed="2999-01-01T00:00:00Z"), 100.0, 115.0, Action.TAKE, id="holders-clock-is-early"),
    ],
)
def test_what_to_do(found, since, now, action):
    observed = Observed(found.spec, since) if found and since is not None else None
    assert next_action(found, "me", observed, now, TERMS) is action


def test_only_a_changed_spec_is_a_sign_of_life():
    first = observe(lease("other"), None, 100.0)
    touched = Lease(ObjectMeta(name="l", namespace="n", resource_version="9", labels={"a": "b"}), lease("other").spec)
    assert observe(touched, first, 105.0).since == 100.0
    assert observe(lease("other", renewed="2026-01-01T00:00:02.000000Z"), first, 105.0).since == 105.0


def test_what_is_written():
    stamp = "2027-01-15T08:00:00.250000Z"
    held = lease("other")
    assert spec_after(Action.CREATE, None, "me", WALL, TERMS) == LeaseSpec("me", 15, stamp, stamp, 0)
    assert spec_after(Action.TAKE, held, "me", WALL, TERMS) == LeaseSpec("me", 15, stamp, stamp, 4)
    assert spec_after(Action.RENEW, lease("me"), "me", WALL, TERMS) == LeaseSpec("me", 15, held.spec.acquire_time, stamp, 3)
    assert spec_given_back(held.spec, WALL) == LeaseSpec("", 1, stamp, stamp, 3)


# Contenders, over HTTP. Each has a clock of its own.


class Clock:
    def __init__(self, moment=0.0):
        self.moment = moment

    def __call__(self):
        return self.moment


class Contest:
    """Contenders whose clocks move together, however far apart they are."""

    def __init__(self, rest, namespace):
        self.rest, self.namespace = rest, namespace
        self.clocks = []

    def enter(self, me, *, offset=0.0, wall=WALL, rest=None):
        clock = Clock(offset)
        self.clocks.append(clock)
        return Elector(
            rest or self.rest, ObjectKey(self.namespace, "us"), me, now=clock, wall=lambda: wall + clock.moment - offset, draw=lambda: 0.0
        )

    def pass_time(self, seconds):
        for clock in self.clocks:
            clock.moment += seconds

    def found(self):
        return self.rest.get(f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/us", Lease).spec


@pytest.fixture
def contest(cluster, namespace):
    return Contest(cluster.rest, namespace)


def test_one_of_two_leads_and_renews_every_two_seconds(contest):
    first, second = contest.enter("first"), contest.enter("second")
    for _ in range(30):
        assert (first.step(), second.step()) == (2.0, 2.0)
        assert (first.is_leader(), second.is_leader()) == (True, False)
        contest.pass_time(2.0)
    assert (contest.found().holder_identity, contest.found().lease_transitions) == ("first", 0)
    assert contest.found().lease_duration_seconds == 15


def test_a_killed_holder_is_followed_after_the_leases_duration(contest):
    first, second = contest.enter("first"), contest.enter("second")
    first.step()
    second.step()
    taken_after = 0.0
    while not second.is_leader():
        contest.pass_time(1.0)
        taken_after += 1.0
        second.step()
        assert not (first.is_leader() and second.is_leader())
    assert taken_after == 15.0
    assert (contest.found().holder_identity, contest.found().lease_transitions) == ("second", 1)
    first.step()  # it was only stopped for a while
    assert not first.is_leader()
    with pytest.raises(NotLeadingError):
        first.require()


@pytest.mark.parametrize(("offset", "wall"), [(1e6, WALL), (0.0, WALL + 3600), (0.0, WALL - 3600), (-1e6, 0.0)])
def test_clocks_may_be_as_far_apart_as_they_like(contest, offset, wall):
    first, second = contest.enter("first"), contest.enter("second", offset=offset, wall=wall)
    for _ in range(20):
        first.step()
        second.step()
        assert (first.is_leader(), second.is_leader()) == (True, False)
        contest.pass_time(2.0)
    contest.pass_time(11.0)
    second.step()
    assert not second.is_leader()
    contest.pass_time(2.0)
    second.step()
    assert second.is_leader()


def test_a_lease_that_is_given_back_is_taken_at_once(contest):
    first, second = contest.enter("first"), contest.enter("second")
    first.step()
    second.step()
    first.release()
    assert not first.is_leader()
    assert (contest.found().holder_identity, contest.found().lease_duration_seconds) == ("", 1)
    second.step()
    assert second.is_leader()
    assert contest.found().lease_transitions == 1


def test_only_the_holder_gives_a_lease_back(contest):
    first, second = contest.enter("first"), contest.enter("second")
    first.step()
    second.step()
    second.release()
    assert contest.found().holder_identity == "first"
    contest.pass_time(10.0)
    first.release()  # too late: maybe somebody else has it by now
    assert contest.found().holder_identity == "first"


def test_of_two_that_take_an_expired_lease_at_once_one_wins(contest, cluster):
    class Slow:
        """Lets another act between its reading and its writing."""

        def __init__(self, between):
            self.between = between

        def find(self, *arguments):
            found = cluster.rest.find(*arguments)
            self.between()
            return found

        def create(self, *arguments):
            return cluster.rest.create(*arguments)

        def patch(self, *arguments):
            return cluster.rest.patch(*arguments)

    first = contest.enter("first")
    second = contest.enter("second", rest=Slow(first.step))
    assert second.step() < 1.0  # it was created meanwhile: look again soon
    assert (first.is_leader(), second.is_leader()) == (True, False)
    second.step()
    contest.pass_time(15.0)
    second.step()  # first renews while second is about to take it
    assert (first.is_leader(), second.is_leader()) == (True, False)
    assert contest.found().holder_identity == "first"


def test_a_change_by_others_to_its_lease_does_not_end_leading(contest, cluster):
    leader = contest.enter("first")
    leader.step()
    path = f"/apis/coordination.k8s.io/v1/namespaces/{contest.namespace}/leases/us"
    cluster.rest.patch(path, {"metadata": {"annotations": {"seen-by": "somebody"}}}, Lease)
    contest.pass_time(2.0)
    assert leader.step() < 1.0
    assert leader.is_leader()
    leader.step()
    contest.pass_time(9.0)
    assert leader.is_leader()
    assert cluster.rest.get(path, Lease).metadata.annotations == {"seen-by": "somebody"}


def test_somebody_else_in_the_lease_ends_leading_at_once(contest, cluster):
    leader = contest.enter("first")
    leader.step()
    path = f"/apis/coordination.k8s.io/v1/namespaces/{contest.namespace}/leases/us"
    cluster.rest.patch(path, {"spec": {"holderIdentity": "usurper"}}, Lease)
    leader.step()
    leader.step()
    assert not leader.is_leader()


def test_a_holder_that_cannot_renew_stops_before_another_begins(contest, caplog):
    leader, standby = contest.enter("first"), contest.enter("second")
    leader.step()
    standby.step()
    leader._rest = Rest(Connection(f"http://{dead_address()}"), retries=0)  # its network is gone
    history = []
    for _ in range(16):
        leader.step()
        standby.step()
        history.append((leader.is_leader(), standby.is_leader()))
        contest.pass_time(1.0)
    assert history == [(True, False)] * 10 + [(False, False)] * 5 + [(False, True)]
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == ["lease not reached"]


class OneLease:
    """An API server with one object; while ``loses`` is set, a write is carried out but its answer is lost."""

    def __init__(self):
        self.lease, self.version, self.loses = None, 0, False

    def find(self, *_):
        return self.lease

    def create(self, _path, made, _kind):
        if self.lease is not None:
            raise ApiError("exists", status=409)
        return self._store(made.spec)

    def patch(self, _path, patch, _kind):
        if patch["metadata"]["resourceVersion"] != str(self.version):
            raise ApiError("modified", status=409)
        return self._store(patch["spec"])

    def _store(self, spec):
        self.version += 1
        self.lease = Lease(ObjectMeta(name="us", namespace="n", resource_version=str(self.version)), spec)
        if self.loses:
            raise ApiError("the answer was lost", status=504)
        return self.lease


@given(plan=st.lists(st.tuples(st.sampled_from([0.0, 2.0, 8.0, 16.0]), st.sampled_from(["first", "second"]), st.booleans()), max_size=40))
def test_never_do_two_lead(plan):
    """Whoever steps when, and whichever answers are lost."""
    server, clock = OneLease(), Clock()
    rivals = {
        name: Elector(server, ObjectKey("n", "us"), name, now=clock, wall=lambda: WALL + clock.moment, draw=lambda: 0.0)
        for name in ("first", "second")
    }
    for seconds, who, loses in plan:
        clock.moment += seconds
        server.loses = loses
        rivals[who].step()
        assert not all(rival.is_leader() for rival in rivals.values())


def test_a_kept_going_election_tells_when_leading_begins_and_gives_the_lease_back(cluster, namespace):
    told = threading.Event()
    elector = Elector(cluster.rest, ObjectKey(namespace, "us"), "me")
    leading = Leading(elector, Clock())
    leading.start(told.set)
    assert told.wait(10.0)
    assert leading.is_leader()
    leading.require()
    leading.stop()
    assert not leading.is_leader()
    assert cluster.store.get(LEASES, namespace, "us")["spec"]["holderIdentity"] == ""


def test_an_election_in_step_takes_its_steps_when_they_are_due(contest):
    elector = contest.enter("first")
    clock = contest.clocks[0]
    leading = Leading(elector, clock)
    assert leading.advance() == 2.0
    renewed = contest.found()
    clock.moment = 1.9
    assert leading.advance() == 2.0
    assert contest.found() == renewed
    clock.moment = 2.0
    assert leading.advance() == 4.0
    assert leading.is_leader()


def test_a_transport_for_leases_does_not_try_for_longer_than_it_helps():
    with scripted_server(lambda _: Answer(503)) as server:
        with pytest.raises(ApiError):
            rest_for_leases(Connection(server.url)).get("/x", Lease)
        assert len(server.requests) == 1


def test_writes_are_prevented_for_whoever_does_not_lead(contest, cluster, namespace):
    elector = contest.enter("first")
    guarded = Rest(cluster.rest._connection, guard=elector.require)
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    with pytest.raises(NotLeadingError):
        guarded.create(path, {"metadata": {"name": "c"}}, Lease)
    assert guarded.list(path, Lease).items == []
    elector.step()
    guarded.create(path, {"metadata": {"name": "c"}}, Lease)
    contest.pass_time(10.0)
    with pytest.raises(NotLeadingError):
        guarded.delete(f"{path}/c")
    assert len(guarded.list(path, Lease).items) == 1


# Somebody else's lease.


@pytest.mark.parametrize(
    ("renewed", "expected"),
    [
        ({}, None),
        ({"kube-system": "2026-01-01T00:00:30.500000Z"}, 1_767_225_630.5),
        ({"kube-system": "2026-01-01T00:00:30Z", "mine": "2026-01-01T00:00:40+00:00"}, 1_767_225_640.0),
        ({"mine": None}, None),
        ({"mine": "yesterday", "kube-system": "2026-01-01T00:00:30Z"}, 1_767_225_630.0),
    ],
    ids=["none", "one", "the-newest", "never-renewed", "not-a-time"],
)
def test_when_an_admission_controller_was_last_there(renewed, expected):
    def respond(request):
        namespace = request.path.split("/")[5]
        assert request.path.endswith("/leases/vpa-admission-controller")
        if namespace not in renewed:
            return Answer(404, b'{"code": 404, "reason": "NotFound"}')
        return Answer(body=json.dumps({"metadata": {"name": "x"}, "spec": {"renewTime": renewed[namespace]}}).encode())

    with scripted_server(respond) as server:
        assert admission_renewed_at(Rest(Connection(server.url)), ("mine", "kube-system")) == expected
