import msgspec
import pytest

from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.node_memory import MAX_PRESSING, NodeMemory, NodeMemoryStatus, PressingContainer
from vpa_ippr.api.validation import validate_node_memory, validate_pressing

NOW = "2026-01-01T00:00:00.250000Z"
ENTRY = PressingContainer("shop", "web-0", "uid-1", "app", "containerd://1", 500, 512, "NearLimit", "needs 500 of 512", 3, NOW, NOW)


def changed(**fields):
    return msgspec.structs.replace(ENTRY, **fields)


def test_an_object_survives_json_in_full():
    status = NodeMemoryStatus([ENTRY], 1, NOW)
    text = msgspec.json.encode(NodeMemory(ObjectMeta(name="n1"), status))
    again = msgspec.json.decode(text, type=NodeMemory)
    assert again.status == status
    assert again.node_name == "n1"


def test_an_empty_list_is_written_so_that_it_replaces_a_full_one():
    assert msgspec.json.decode(msgspec.json.encode(NodeMemoryStatus(last_beat_time=NOW))) == {
        "pressing": [],
        "pressingCount": 0,
        "lastBeatTime": NOW,
    }


def test_a_reason_of_a_newer_agent_can_be_read():
    text = msgspec.json.encode(changed(reason="SwapFull"))
    assert msgspec.json.decode(text, type=PressingContainer).reason == "SwapFull"


@pytest.mark.parametrize(
    ("entry", "broken"),
    [
        pytest.param(ENTRY, "", id="valid"),
        pytest.param(changed(pod_uid=""), "pressing.podUid: required", id="no-uid"),
        pytest.param(changed(container_id=""), "pressing.containerId: required", id="no-container"),
        pytest.param(changed(reason=""), "pressing.reason: required", id="no-reason"),
        pytest.param(changed(limit_bytes=0), "pressing.limitBytes: must be at least 1, not 0", id="no-limit"),
        pytest.param(changed(usage_bytes=-1), "pressing.usageBytes: must be at least 0, not -1", id="negative-usage"),
        pytest.param(changed(growth_bytes_per_second=-1), "pressing.growthBytesPerSecond: must be at least 0, not -1", id="shrinking"),
        pytest.param(changed(observed_time="now"), "pressing.observedTime: cannot read 'now' as a time", id="no-time"),
        pytest.param(changed(since="2026-01-01T00:00:00"), "pressing.since: time '2026-01-01T00:00:00' has no zone", id="no-zone"),
    ],
)
def test_an_entry_that_cannot_be_used_says_why(entry, broken):
    found = validate_pressing(entry)
    assert len(found) == bool(broken)
    assert "".join(found).startswith(broken)


@pytest.mark.parametrize(
    ("status", "broken"),
    [
        pytest.param(NodeMemoryStatus(), [], id="empty"),
        pytest.param(NodeMemoryStatus([ENTRY], 1, NOW), [], id="one"),
        pytest.param(NodeMemoryStatus([ENTRY], 0, NOW), ["status.pressingCount"], id="count-too-low"),
        pytest.param(NodeMemoryStatus([ENTRY, ENTRY], 2, NOW), ["status.pressing[1]"], id="twice"),
        pytest.param(NodeMemoryStatus([], 0, "soon"), ["status.lastBeatTime"], id="no-time"),
        pytest.param(
            NodeMemoryStatus([changed(container_name=f"c{i}") for i in range(MAX_PRESSING + 1)], 99, NOW),
            ["status.pressing"],
            id="too-many",
        ),
    ],
)
def test_a_status_that_breaks_a_rule_says_where(status, broken):
    assert [line.partition(":")[0] for line in validate_node_memory(status)] == broken
