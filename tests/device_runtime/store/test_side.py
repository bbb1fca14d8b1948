"""What a person says of themselves: in the store alone, shown to the person, and erased with everything else."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from device_runtime.round.gate import Gate
from device_runtime.store.side import SERVICE, said_of, say
from device_runtime.store.store import Store, store_path
from device_runtime.view.overview import export
from odp.cli.main import app
from odp.errors import ConfigurationError, DataError


def test_it_is_kept_replaced_forgotten_exported_and_erased(tmp_path: Path) -> None:
    with Store.open_or_create(store_path(tmp_path, 0)) as store:
        assert said_of(store) == {}
        say(store, {"age_group": "25-34", "device": "phone"}, time=1.0)
        say(store, {"age_group": "35-44", "gender": "woman"}, time=2.0)
        say(store, {"device": None, "never_said": None}, time=3.0)
        assert said_of(store) == {"age_group": "35-44", "gender": "woman"}
        shown = export(store, Gate.load(tmp_path), now=4.0)["services"][SERVICE]["local"]
        assert {name: base64.b64decode(value).decode() for name, value in shown.items()} == said_of(store)
        store.erase()
        assert said_of(store) == {}


@pytest.mark.parametrize("said", [{"Age": "1"}, {"age": ""}, {"age": "x" * 121}, {"age": "a\nb"}, {"Age": None}])
def test_what_is_no_category_is_refused_and_nothing_changes(tmp_path: Path, said: dict[str, str | None]) -> None:
    with Store.open_or_create(store_path(tmp_path, 0)) as store:
        say(store, {"age": "old"}, time=1.0)
        with pytest.raises(ConfigurationError):
            say(store, {"gender": "man", **said}, time=2.0)
        assert said_of(store) == {"age": "old"}


def test_there_are_at_most_32_attributes(tmp_path: Path) -> None:
    with Store.open_or_create(store_path(tmp_path, 0)) as store:
        say(store, {f"a{number}": "x" for number in range(32)}, time=1.0)
        with pytest.raises(DataError, match="at most 32"):
            say(store, {"one_more": "x"}, time=2.0)
        say(store, {"one_more": "x", "a0": None}, time=2.0)
        assert len(said_of(store)) == 32


def test_the_command_shows_sets_and_forgets(tmp_path: Path) -> None:
    def command(*arguments: str) -> str:
        found = CliRunner().invoke(app, ["device", "about", *arguments, "--state", str(tmp_path)])
        assert found.exit_code == 0, found.output
        return found.stdout

    Store.open_or_create(store_path(tmp_path, 0)).close()
    assert "age_group = 25-34" in command("age_group=25-34", "gender=woman")
    assert json.loads(command("gender=", "--json")) == {"device": 0, "about": {"age_group": "25-34"}}
    assert CliRunner().invoke(app, ["device", "about", "age", "--state", str(tmp_path)]).exit_code != 0
