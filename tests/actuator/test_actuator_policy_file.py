"""The node's policy file: what it changes, and one clear line for each thing that it cannot be."""

from dataclasses import replace

import pytest

from vpa_ippr.actuator.policy import MIB, Policy
from vpa_ippr.actuator.policy_file import load_policy
from vpa_ippr.api.errors import UsageError

BASE = Policy(node_cpus=16)


def load(tmp_path, text):
    path = tmp_path / "actuator.toml"
    path.write_text(text)
    return load_policy(path, BASE)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("", {}),
        ("settle_seconds = 10", {"settle_seconds": 10.0}),
        ("settle_seconds = 7.5\nmax_stepping = 1", {"settle_seconds": 7.5, "max_stepping": 1}),
        ('step_max_bytes = "64Mi"', {"step_max_bytes": 64 * MIB}),
        ("step_max_bytes = 67108864", {"step_max_bytes": 64 * MIB}),
        ('swap_out_bytes_per_second = "2Mi"\nmay_swap = true', {"swap_out_bytes_per_second": 2 * MIB, "may_swap": True}),
        ('excluded_namespaces = ["kube-system", "storage-*"]', {"excluded_namespaces": ("kube-system", "storage-*")}),
        ("excluded_namespaces = []", {"excluded_namespaces": ()}),
    ],
)
def test_what_the_file_says_is_changed_and_nothing_else(tmp_path, text, changes):
    assert load(tmp_path, text) == replace(BASE, **changes)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("settle_secs = 10", ["settle_secs: is no field of the policy"]),
        ("node_cpus = 2", ["node_cpus: is found on the node and cannot be set"]),
        ("floor_bytes = 2", ["floor_bytes: belongs to a single shrink and cannot be set"]),
        ("[step]\nmax = 1", ["step: the file has no tables, only keys"]),
        ('settle_seconds = "10s"', ["settle_seconds: must be a number, not '10s'"]),
        ("settle_seconds = true", ["settle_seconds: must be a number, not True"]),
        ("max_stepping = 1.5", ["max_stepping: must be a whole number, not 1.5"]),
        ("max_stepping = true", ["max_stepping: must be a whole number, not True"]),
        ("may_swap = 1", ["may_swap: must be true or false, not 1"]),
        ('step_max_bytes = "64 apples"', ["step_max_bytes: "]),
        ('excluded_namespaces = "kube-system"', ["excluded_namespaces: must be a list of texts, not 'kube-system'"]),
        ("excluded_namespaces = [1]", ["excluded_namespaces: must be a list of texts, not [1]"]),
        ("settle_seconds = nan", ["settle_seconds: must be a finite number and not negative"]),
        ("settle_seconds = 1000", ["settle_seconds: must lie in 1..300"]),
        ("max_stepping = 20", ["max_stepping: must be above 0 and at most max_observing"]),
        ("settle_seconds = 1000\nnope = 1", ["nope: is no field", "settle_seconds: must lie in 1..300"]),
    ],
)
def test_what_cannot_be_is_told_line_by_line(tmp_path, text, lines):
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    told = str(caught.value).splitlines()
    assert len(told) == len(lines)
    for line, expected in zip(told, lines, strict=True):
        assert line.startswith(f"policy file {tmp_path}/actuator.toml: {expected}")


@pytest.mark.parametrize("text", ["settle_seconds", "a = 1\na = 2"])
def test_what_is_no_toml_is_one_error(tmp_path, text):
    with pytest.raises(UsageError, match=r"cannot read the policy file .*actuator\.toml: "):
        load(tmp_path, text)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match="nowhere"):
        load_policy(tmp_path / "nowhere.toml", BASE)
