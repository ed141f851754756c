from __future__ import annotations

import threading

import pytest
from sandbox_api_support import START, StandingClock, a_config_map, a_deployment, a_pod

from vpa_ippr.sandbox.status import StatusError
from vpa_ippr.sandbox.store import DeleteOptions, Store


@pytest.fixture
def store() -> Store:
    return Store(StandingClock())


def test_a_new_object_has_its_system_fields(store: Store) -> None:
    created = store.create("configmaps", a_config_map(a="1"))
    metadata = created["metadata"]
    assert metadata["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert len(metadata["uid"]) == 36
    assert int(metadata["resourceVersion"]) == store.revision
    assert "generation" not in metadata
    assert (created["apiVersion"], created["kind"]) == ("v1", "ConfigMap")
    assert store.get("configmaps", "default", "c") == created


def test_what_is_returned_is_the_callers_own(store: Store) -> None:
    created = store.create("configmaps", a_config_map(a="1"))
    created["data"]["a"] = "2"
    assert store.get("configmaps", "default", "c")["data"] == {"a": "1"}


def test_generate_name_makes_distinct_names(store: Store) -> None:
    names = {store.create("configmaps", {"metadata": {"generateName": "job-"}})["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


def test_revisions_only_grow(store: Store) -> None:
    first = store.create("configmaps", a_config_map("a"))
    second = store.create("pods", a_pod())
    third = store.update("configmaps", "default", "a", lambda obj: {**obj, "data": {"k": "v"}})
    versions = [int(obj["metadata"]["resourceVersion"]) for obj in (first, second, third)]
    assert versions == sorted(set(versions))


def test_an_update_that_changes_nothing_is_not_written(store: Store) -> None:
    before = store.create("configmaps", a_config_map(a="1"))
    assert store.update("configmaps", "default", "c", lambda obj: obj) == before
    assert store.get("configmaps", "default", "c") == before


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("resourceVersion", "1", "the object has been modified"),
        ("uid", "00000000-0000-0000-0000-000000000000", "Precondition failed: UID in precondition"),
    ],
)
def test_a_lost_race_is_a_conflict(store: Store, field: str, value: str, message: str) -> None:
    store.create("configmaps", a_config_map())
    with pytest.raises(StatusError, match=message) as caught:
        store.update("configmaps", "default", "c", lambda obj: {**obj, "metadata": {**obj["metadata"], field: value}})
    assert (caught.value.code, caught.value.reason) == (409, "Conflict")


@pytest.mark.parametrize(
    ("action", "code"),
    [
        (lambda s: s.get("pods", "default", "nope"), 404),
        (lambda s: s.delete("pods", "default", "nope"), 404),
        (lambda s: s.update("pods", "default", "nope", lambda obj: obj), 404),
        (lambda s: s.list("gizmos"), 404),
        (lambda s: s.create("pods", {"metadata": {"name": "x", "namespace": "missing"}, "spec": {}}), 404),
        (lambda s: s.create("namespaces", {"metadata": {"name": "default"}}), 409),
        (lambda s: s.create("configmaps", {"metadata": {"name": "Not_A_Name"}}), 422),
        (lambda s: s.create("configmaps", {"metadata": {"name": "x", "labels": {"a": "not a label"}}}), 422),
    ],
    ids=["get", "delete", "update", "unknown-resource", "no-namespace", "exists", "bad-name", "bad-label"],
)
def test_refusals(store: Store, action, code: int) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StatusError) as caught:
        action(store)
    assert caught.value.code == code


def test_concurrent_updates_lose_nothing(store: Store) -> None:
    store.create("configmaps", a_config_map(n="0"))

    def count() -> None:
        for _ in range(50):
            store.update("configmaps", "default", "c", lambda obj: {**obj, "data": {"n": str(int(obj["data"]["n"]) + 1)}})

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get("configmaps", "default", "c")["data"] == {"n": "200"}


class TestGeneration:
    def test_counts_changes_of_the_spec_only(self, store: Store) -> None:
        store.create("deployments.apps", a_deployment())

        def scaled(obj: dict) -> dict:
            obj["spec"]["replicas"] = 5
            return obj

        assert store.update("deployments.apps", "default", "web", scaled)["metadata"]["generation"] == 2
        labelled = store.update("deployments.apps", "default", "web", lambda o: {**o, "metadata": {**o["metadata"], "labels": {"a": "b"}}})
        assert labelled["metadata"]["generation"] == 2

    def test_status_and_spec_have_their_own_endpoints(self, store: Store) -> None:
        store.create("deployments.apps", a_deployment(replicas=2))

        def both(obj: dict) -> dict:
            obj["spec"]["replicas"] = 9
            obj["status"] = {"replicas": 7}
            return obj

        after_status = store.update("deployments.apps", "default", "web", both, subresource="status")
        assert (after_status["spec"]["replicas"], after_status["status"]["replicas"]) == (2, 7)
        after_main = store.update("deployments.apps", "default", "web", lambda o: {**both(o), "status": {"replicas": 1}})
        assert (after_main["spec"]["replicas"], after_main["status"]["replicas"]) == (9, 7)


class TestSubscribers:
    def test_hear_every_change_in_order_before_the_write_returns(self, store: Store) -> None:
        heard: list[tuple[str, str]] = []
        leave = store.subscribe("configmaps", lambda event, obj: heard.append((event, obj["metadata"]["name"])))
        store.create("configmaps", a_config_map("a"))
        store.update("configmaps", "default", "a", lambda obj: {**obj, "data": {"x": "y"}})
        store.delete("configmaps", "default", "a")
        assert heard == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
        leave()
        store.create("configmaps", a_config_map("b"))
        assert len(heard) == 3

    def test_a_change_made_by_one_reaches_the_others_after_its_cause(self, store: Store) -> None:
        heard: list[str] = []

        def react(event: str, obj: dict) -> None:
            if obj["metadata"]["name"] == "cause":
                store.create("configmaps", a_config_map("effect"))

        store.subscribe("configmaps", react)
        store.subscribe("configmaps", lambda _, obj: heard.append(obj["metadata"]["name"]))
        store.create("configmaps", a_config_map("cause"))
        assert heard == ["cause", "effect"]

    def test_one_that_fails_does_not_stop_the_others(self, store: Store, caplog: pytest.LogCaptureFixture) -> None:
        heard: list[str] = []

        def fail(event: str, obj: dict) -> None:
            raise RuntimeError("broken")

        store.subscribe("configmaps", fail)
        store.subscribe("configmaps", lambda event, _: heard.append(event))
        store.create("configmaps", a_config_map())
        assert heard == ["ADDED"]
        assert "a subscriber failed" in caplog.text


class TestDeletion:
    def test_a_pod_on_a_node_stays_until_its_grace_period_is_cut_to_zero(self, store: Store) -> None:
        store.create("pods", a_pod(nodeName="n1", terminationGracePeriodSeconds=30))
        store.delete("pods", "default", "p")
        marked = store.get("pods", "default", "p")["metadata"]
        assert (marked["deletionTimestamp"], marked["deletionGracePeriodSeconds"]) == ("2026-01-01T00:00:30Z", 30)
        assert marked["generation"] == 2
        store.delete("pods", "default", "p", grace_period_seconds=0)
        assert store.find("pods", "default", "p") is None

    def test_a_later_request_shortens_the_wait_and_never_lengthens_it(self, store: Store) -> None:
        store.create("pods", a_pod(nodeName="n1"))
        for seconds, expected in ((20, 20), (60, 20), (5, 5)):
            store.delete("pods", "default", "p", grace_period_seconds=seconds)
            assert store.get("pods", "default", "p")["metadata"]["deletionGracePeriodSeconds"] == expected

    def test_a_finalizer_holds_the_object(self, store: Store) -> None:
        obj = a_config_map()
        obj["metadata"]["finalizers"] = ["test.io/hold"]
        store.create("configmaps", obj)
        deletion = store.remove("configmaps", "default", "c", DeleteOptions())
        assert not deletion.gone
        store.update("configmaps", "default", "c", lambda o: {**o, "metadata": {**o["metadata"], "finalizers": []}})
        assert store.find("configmaps", "default", "c") is None

    def test_no_finalizer_can_be_added_any_more(self, store: Store) -> None:
        obj = a_config_map()
        obj["metadata"]["finalizers"] = ["test.io/hold"]
        store.create("configmaps", obj)
        store.delete("configmaps", "default", "c")
        with pytest.raises(StatusError, match="no new finalizers can be added"):
            store.update(
                "configmaps", "default", "c", lambda o: {**o, "metadata": {**o["metadata"], "finalizers": ["test.io/hold", "b.io/c"]}}
            )

    def test_a_dry_run_leaves_everything(self, store: Store) -> None:
        store.create("configmaps", a_config_map())
        revision = store.revision
        store.remove("configmaps", "default", "c", DeleteOptions(dry_run=True))
        store.update("configmaps", "default", "c", lambda o: {**o, "data": {"a": "b"}}, dry_run=True)
        store.create("configmaps", a_config_map("d"), dry_run=True)
        assert store.revision == revision
        assert [o["metadata"]["name"] for o in store.list("configmaps")] == ["c"]


class TestHistory:
    def test_an_earlier_state_can_be_read_while_it_is_held(self, store: Store) -> None:
        store.create("configmaps", a_config_map("a", v="1"))
        store.create("configmaps", a_config_map("b"))
        then = store.revision
        store.update("configmaps", "default", "a", lambda o: {**o, "data": {"v": "2"}})
        store.delete("configmaps", "default", "b")
        store.create("configmaps", a_config_map("c"))
        records, revision = store.snapshot("configmaps", at=then)
        assert revision == then
        assert [(key[1], record.obj.get("data")) for key, record in records] == [("a", {"v": "1"}), ("b", {})]

    def test_what_is_too_old_is_gone(self) -> None:
        store = Store(StandingClock(START), history=3)
        store.create("configmaps", a_config_map("a"))
        old = store.revision
        for index in range(5):
            store.create("configmaps", a_config_map(f"x{index}"))
        with pytest.raises(StatusError) as caught:
            store.changes_since("configmaps", old)
        assert (caught.value.code, caught.value.reason) == (410, "Expired")
        assert [change.key[1] for change in store.changes_since("configmaps", store.revision - 3)] == ["x2", "x3", "x4"]


def test_a_quota_is_charged_and_refuses_what_is_too_much(store: Store) -> None:
    store.create("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "150m"}}})
    status = {"hard": {"requests.cpu": "150m"}, "used": {"requests.cpu": "0"}}
    store.update("resourcequotas", "default", "q", lambda o: {**o, "status": status}, subresource="status")
    store.create("pods", a_pod("a"))
    assert store.get("resourcequotas", "default", "q")["status"]["used"] == {"requests.cpu": "100m"}
    with pytest.raises(StatusError, match="exceeded quota: q") as caught:
        store.create("pods", a_pod("b"))
    assert caught.value.code == 403
