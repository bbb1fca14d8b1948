"""What `pyproject.toml` asks for is enough for the code that is generated from `protos/`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Version = tuple[int, ...]


def least(package: str) -> Version:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (found,) = (one for one in project["dependencies"] if re.match(rf"{package}>=", one))
    return tuple(map(int, re.fullmatch(rf"{package}>=([\d.]+)", found)[1].split(".")))  # type: ignore[index]


def generated(pattern: str, read: str) -> set[Version]:
    """The versions that all generated files of a pattern name."""
    texts = [path.read_text() for path in (ROOT / "odp" / "v1").glob(pattern)]
    found = [re.search(read, text) for text in texts]
    assert found
    assert all(found)
    return {tuple(map(int, re.findall(r"\d+", one[1]))) for one in found if one}


def test_protobuf_is_at_least_that_of_the_generated_messages() -> None:
    assert generated("*_pb2.py", r"Domain\.PUBLIC,((?:\s*\d+,){3})") == {least("protobuf")}


def test_grpc_is_at_least_that_of_the_generated_services() -> None:
    wanted = generated("*_pb2_grpc.py", r"GRPC_GENERATED_VERSION = '([\d.]+)'")
    assert wanted == {least("grpcio")}
    assert wanted == {least("grpcio-health-checking")} == {least("grpcio-reflection")}
