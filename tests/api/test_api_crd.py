from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from kubernetes_validate import validate

from vpa_ippr.api.crd import definitions, render
from vpa_ippr.api.node_memory import NodeMemory
from vpa_ippr.api.shrink import MemoryShrink
from vpa_ippr.api.vpa import Vpa, VpaCheckpoint

CRD_DIRECTORY = Path(__file__).parents[2] / "config" / "crd"
TYPES = {
    "verticalpodautoscalers": Vpa,
    "verticalpodautoscalercheckpoints": VpaCheckpoint,
    "memoryshrinks": MemoryShrink,
    "nodememories": NodeMemory,
}


@pytest.mark.parametrize("name", sorted(TYPES))
def test_committed_yaml_is_what_the_code_generates(name: str) -> None:
    assert (CRD_DIRECTORY / f"{name}.yaml").read_text() == render(definitions()[name]), "run `make crds`"


@pytest.mark.parametrize("version", ["1.33", "1.36"])
@pytest.mark.parametrize("name", sorted(TYPES))
def test_definition_is_a_valid_kubernetes_object(name: str, version: str) -> None:
    validate(definitions()[name], version, strict=True)


def json_fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.encode_name: field.type for field in msgspec.inspect.type_info(kind).fields}  # type: ignore[attr-defined]


def struct_of(info: Any) -> type[msgspec.Struct] | None:
    if isinstance(info, msgspec.inspect.StructType):
        return info.cls
    if isinstance(info, msgspec.inspect.UnionType):
        return next((found for part in info.types if (found := struct_of(part))), None)
    if isinstance(info, msgspec.inspect.ListType):
        return struct_of(info.item_type)
    return None


def compare(kind: type[msgspec.Struct], schema: dict[str, Any], path: str) -> None:
    fields = json_fields(kind)
    assert set(fields) == set(schema["properties"]), path
    for name, info in fields.items():
        inner = struct_of(info)
        below = schema["properties"][name]
        if inner is not None:
            compare(inner, below.get("items", below), f"{path}.{name}")


@pytest.mark.parametrize("name", sorted(TYPES))
def test_schema_and_type_have_the_same_fields(name: str) -> None:
    root = definitions()[name]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    parts = sorted({"spec", "status"} & set(json_fields(TYPES[name])))
    assert parts == sorted({"spec", "status"} & set(root))
    for part in parts:
        inner = struct_of(json_fields(TYPES[name])[part])
        assert inner is not None
        compare(inner, root[part], f"{name}.{part}")


def test_yaml_is_readable_without_our_code() -> None:
    for path in CRD_DIRECTORY.glob("*.yaml"):
        if path.name != "kustomization.yaml":
            assert yaml.safe_load(path.read_text())["kind"] == "CustomResourceDefinition"
