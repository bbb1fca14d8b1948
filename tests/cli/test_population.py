"""`odp population`: whose a population is, and how owners change that from the shell."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.conftest import Printed
from e2e.world import World

from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError
from odp.signed.charter import approve, open_charter
from odp.v1 import population_pb2

Odp = Callable[..., Printed]
OTHER = SigningKey.generate()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        yield World(tmp_path_factory.mktemp("world")).start(stack)


@pytest.fixture
def at(world: World) -> tuple[object, ...]:
    return "--server", world.server.address, "--state", world.root


def key_of(odp: Odp, world: World) -> str:
    found: str = odp("server", "key", "--state", world.root / "server").out.strip()
    return found


def test_the_servers_key_is_that_of_its_state_folder(odp: Odp, world: World, at: tuple[object, ...]) -> None:
    key = key_of(odp, world)
    assert odp("server", "key", "--state", world.root / "server", "--json").json == {"server_key": key}
    assert odp("population", "show", "nobodys", *at, "--json").json == {
        "population": "nobodys", "charter": None, "server_key": key,
    }  # fmt: skip
    assert "not founded yet" in odp("population", "show", "nobodys", *at).out


def test_owners_are_added_and_retired(odp: Odp, world: World, at: tuple[object, ...]) -> None:
    key, other = key_of(odp, world), OTHER.public.hex()
    assert "in force" in odp("population", "found", "films", *at).out
    assert odp("population", "show", "films", *at, "--json").json["charter"]["owners"] == [key]
    assert odp("population", "owners", "add", "films", other, *at, "--json").json["in_force"] is True
    shown = odp("population", "show", "films", *at).out
    assert f"owner {key}  (this server)" in shown
    assert f"owner {other}" in shown
    with pytest.raises(ConfigurationError, match="has these owners"):
        odp("population", "owners", "add", "films", other, *at)
    assert odp("population", "owners", "retire", "films", other, *at, "--json").json["charter"]["owners"] == [key]
    assert odp("population", "show", "films", *at, "--json").json["charter"]["sequence"] == 2


def test_a_change_that_needs_approvals_goes_to_the_other_owner_in_a_file(
    odp: Odp, world: World, at: tuple[object, ...], tmp_path: Path
) -> None:
    key, other = key_of(odp, world), OTHER.public.hex()
    odp("population", "found", "songs", "--owner", key, "--owner", other, "--approvals", "2", *at)
    file = tmp_path / "change.json"
    told = odp("population", "owners", "retire", "songs", key, *at, "--output", file, "--json").json
    assert (told["in_force"], told["missing"]) == (False, 1)
    assert odp("population", "show", "songs", *at, "--json").json["charter"]["sequence"] == 0
    assert "1 more approval needed" in odp("population", "approve", file, *at).out, "this server's is there already"
    # What the other owner's server does with the file.
    content = json.loads(file.read_text())
    signed = population_pb2.SignedCharter(
        charter=bytes.fromhex(content["charter"]),
        signatures=[
            population_pb2.CharterSignature(key=bytes.fromhex(one["key"]), signature=bytes.fromhex(one["signature"]))
            for one in content["signatures"]
        ],
    )
    whole = approve(signed, OTHER)
    content["signatures"] = [{"key": one.key.hex(), "signature": one.signature.hex()} for one in whole.signatures]
    file.write_text(json.dumps(content))
    assert odp("population", "approve", file, *at, "--json").json["in_force"] is True
    assert odp("population", "show", "songs", *at, "--json").json["charter"]["owners"] == [other]
    assert open_charter(whole).owners == (OTHER.public,)
    wish = odp("population", "owners", "add", "songs", key, *at, "--output", tmp_path / "wish.json", "--json").json
    assert (wish["in_force"], wish["missing"]) == (False, 1), "who owns it no longer can only ask"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"charter": "zz", "signatures": []}', '{"charter": ""}'])
def test_a_file_that_is_no_change_is_one_line(odp: Odp, at: tuple[object, ...], tmp_path: Path, content: str) -> None:
    file = tmp_path / "change.json"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match="is no change of a population"):
        odp("population", "approve", file, *at)
    with pytest.raises(ConfigurationError, match="cannot read"):
        odp("population", "approve", tmp_path / "missing.json", *at)


@pytest.mark.parametrize("key", ["", "zz", "00" * 31])
def test_a_key_that_is_none_is_one_line(odp: Odp, at: tuple[object, ...], key: str) -> None:
    odp("population", "show", "films", *at)
    with pytest.raises(ConfigurationError, match="key"):
        odp("population", "owners", "add", "books", key, *at)
