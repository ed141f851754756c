"""When each resource of a container was last asked to change: what the recommender's pause before a decrease counts from."""

import pytest
from resize_support import a_pod

from vpa_ippr.api.resources import ContainerResources, Resource
from vpa_ippr.resize.ledger import Ledger, with_resize

GIB = 2**30


def ask(ledger, cpu, memory, now):
    current = a_pod().desired("app")
    wanted = ContainerResources(
        current.requests.having(Resource.CPU, cpu or current.requests.cpu_millicores).having(
            Resource.MEMORY, memory or current.requests.memory_bytes
        ),
        current.limits,
    )
    return with_resize(ledger, a_pod(), {"app": wanted}, now)


@pytest.mark.parametrize(
    ("cpu", "memory", "moments"),
    [(7, None, (100.0, None)), (None, 7 * GIB, (None, 100.0)), (7, 7 * GIB, (100.0, 100.0)), (None, None, (None, None))],
    ids=["cpu", "memory", "both", "neither"],
)
def test_a_resize_is_noted_for_what_it_changes(cpu, memory, moments):
    basis = ask(Ledger(), cpu, memory, 100.0).bases["app"]
    assert (basis.cpu_at, basis.memory_at) == moments


def test_a_resize_of_one_resource_does_not_hide_that_of_the_other():
    basis = ask(ask(Ledger(), None, 7 * GIB, 100.0), 7, None, 200.0).bases["app"]
    assert (basis.cpu_at, basis.memory_at) == (200.0, 100.0)


def test_a_limit_alone_counts():
    current = a_pod().desired("app")
    wanted = ContainerResources(current.requests, current.limits.having(Resource.MEMORY, 9 * GIB))
    assert with_resize(Ledger(), a_pod(), {"app": wanted}, 100.0).bases["app"].memory_at == 100.0
