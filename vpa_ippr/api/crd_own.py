"""The definitions of our own two types: MemoryShrink and NodeMemory."""

from __future__ import annotations

from typing import Any

from vpa_ippr.api.crd_parts import Schema, a_column, a_definition, a_list, a_number, a_string, a_time, an_integer, an_object
from vpa_ippr.api.names import NODE_MEMORY_VERSION, OWN_GROUP, SHRINK_VERSION
from vpa_ippr.api.node_memory import MAX_PRESSING, PressingReason
from vpa_ippr.api.shrink import Intent, Phase, SwapUse


def _shrink_spec() -> Schema:
    policy = an_object(
        "What is different from the agent's own policy.",
        stepPercent=a_number("Share of usage reclaimed in a step, in percent.", minimum=0.1, maximum=10),
        settleSeconds=a_number("Time to watch after a step.", minimum=1, maximum=300),
        stabilitySeconds=a_number("Time that usage must stay below the target before the limit goes down.", minimum=1, maximum=3600),
        maxPressurePercent=a_number("Memory pressure (PSI some) above which stepping pauses.", minimum=0, maximum=100),
        maxRefaultPercent=a_number("Refaulted share of what a step freed above which stepping pauses.", minimum=0, maximum=100),
        floorBytes=an_integer("Usage is not brought below this.", "int64", minimum=0),
        observeSeconds=a_number("Time to watch before anything is touched.", minimum=1, maximum=3600),
        horizonSeconds=a_number("A need that grows on for so long must still fit.", minimum=60, maximum=86400),
        marginPercent=a_number("Room that is kept below the target, in percent of it.", minimum=0.1, maximum=49),
        mappedReservePercent=a_number("Share of the mapped files that must stay in memory, in percent.", minimum=0, maximum=100),
        swap=a_string("Whether anonymous memory may be swapped out.", enum=[use.value for use in SwapUse]),
    )
    spec = an_object(
        "What is asked of the node's agent; immutable but for intent.",
        ["container", "nodeName", "pod", "targetBytes"],
        pod=an_object("The pod.", ["name", "uid"], name=a_string("Its name.", minLength=1), uid=a_string("Its UID.", minLength=1)),
        nodeName=a_string("The node that runs the pod.", minLength=1),
        container=an_object(
            "The container.",
            ["id", "name"],
            name=a_string("Its name.", minLength=1),
            id=a_string("Its runtime id, scheme included.", minLength=1),
        ),
        targetBytes=an_integer("The memory limit to prepare for.", "int64", minimum=1),
        deadlineSeconds=an_integer("After this long the shrink is given up and undone.", minimum=1, maximum=86400, default=900),
        policy=policy,
        intent=a_string("Abort asks the agent to undo what it did.", enum=[intent.value for intent in Intent]),
    )
    frozen = ["pod", "nodeName", "container", "targetBytes", "deadlineSeconds"]
    spec["x-kubernetes-validations"] = [
        {"rule": f"self.{name} == oldSelf.{name}", "message": f"{name} is immutable"} for name in frozen
    ] + [
        {
            "rule": "has(self.policy) == has(oldSelf.policy) && (!has(self.policy) || self.policy == oldSelf.policy)",
            "message": "policy is immutable",
        }
    ]
    return spec


def _shrink_status() -> Schema:
    return an_object(
        "What the agent did and saw.",
        phase=a_string("Where the shrink is.", enum=[phase.value for phase in Phase]),
        reason=a_string("A CamelCase code."),
        message=a_string("A line for people."),
        currentHighBytes=an_integer("memory.high as last written; absent means max.", "int64"),
        usageBytes=an_integer("memory.current at the last look.", "int64"),
        floorBytes=an_integer("Below this nothing can or should be reclaimed.", "int64"),
        memoryPressurePercent=a_number("PSI memory some over the last settle window."),
        ioPressurePercent=a_number("PSI io some over the last settle window."),
        steps=an_integer("Reclaim steps made."),
        backoffs=an_integer("Times that stepping paused for pressure."),
        startTime=a_time("When the agent took it up."),
        transitionTime=a_time("When the phase last changed."),
        heldTime=a_time("When usage was last seen held below the target; in Holding only."),
        completionTime=a_time("When it became terminal."),
        observedGeneration=an_integer("The generation that the agent acted on.", "int64", minimum=0),
    )


def shrink_definition() -> dict[str, Any]:
    """MemoryShrink."""
    return a_definition(
        OWN_GROUP,
        SHRINK_VERSION,
        {
            "plural": "memoryshrinks",
            "singular": "memoryshrink",
            "kind": "MemoryShrink",
            "listKind": "MemoryShrinkList",
            "shortNames": ["mshrink"],
        },
        {"spec": _shrink_spec(), "status": _shrink_status()},
        subresources={"status": {}},
        additionalPrinterColumns=[
            a_column("Pod", ".spec.pod.name"),
            a_column("Container", ".spec.container.name"),
            a_column("Target", ".spec.targetBytes", "integer"),
            a_column("Usage", ".status.usageBytes", "integer"),
            a_column("Phase", ".status.phase"),
            a_column("Reason", ".status.reason"),
            a_column("Age", ".metadata.creationTimestamp", "date"),
        ],
    )


def _pressing() -> Schema:
    text = {"minLength": 1, "maxLength": 253}
    return an_object(
        "A container that is about to run out of memory.",
        [
            "containerId",
            "containerName",
            "growthBytesPerSecond",
            "limitBytes",
            "message",
            "namespace",
            "observedTime",
            "podName",
            "podUid",
            "reason",
            "since",
            "usageBytes",
        ],
        namespace=a_string("Namespace of the pod.", **text),
        podName=a_string("Name of the pod.", **text),
        podUid=a_string("UID of the pod.", **text),
        containerName=a_string("Name of the container.", **text),
        containerId=a_string("Its runtime id, scheme included; a restarted container is another one.", **text),
        usageBytes=an_integer("Memory that cannot be reclaimed; page cache is left out.", "int64", minimum=0),
        limitBytes=an_integer("The memory limit in force.", "int64", minimum=1),
        reason=a_string("A CamelCase code.", enum=[reason.value for reason in PressingReason]),
        message=a_string("A line for people.", maxLength=1024),
        growthBytesPerSecond=an_integer("How fast that usage grows.", "int64", minimum=0),
        since={"type": "string", "format": "date-time", "description": "When it began to press."},
        observedTime={"type": "string", "format": "date-time", "description": "When these figures were taken."},
    )


def _node_memory_status() -> Schema:
    pressing = a_list("The containers that press now.", _pressing(), maxItems=MAX_PRESSING) | {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["podUid", "containerName"],
    }
    return an_object(
        "What the node's agent sees.",
        pressing=pressing,
        pressingCount=an_integer("How many containers press, listed or not.", minimum=0),
        lastBeatTime=a_time("When the agent last wrote; it does so each minute at least."),
    )


def node_memory_definition() -> dict[str, Any]:
    """NodeMemory."""
    return a_definition(
        OWN_GROUP,
        NODE_MEMORY_VERSION,
        {
            "plural": "nodememories",
            "singular": "nodememory",
            "kind": "NodeMemory",
            "listKind": "NodeMemoryList",
            "shortNames": ["nmem"],
        },
        {"status": _node_memory_status()},
        scope="Cluster",
        subresources={"status": {}},
        additionalPrinterColumns=[
            a_column("Pressing", ".status.pressingCount", "integer"),
            a_column("First", ".status.pressing[0].podName"),
            a_column("Reason", ".status.pressing[0].reason"),
            a_column("Beat", ".status.lastBeatTime", "date"),
            a_column("Age", ".metadata.creationTimestamp", "date"),
        ],
    )
