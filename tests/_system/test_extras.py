"""What an extra adds is said in one line where it is missed: each module is hidden, as if it were not installed."""

from __future__ import annotations

import http.client
import importlib
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest

import odp
from device_runtime.host import doctor
from device_runtime.isolated.training import IsolatedTrainer
from device_runtime.person.sensors import MachineSensors, Unreadable
from device_runtime.sdk import Device, Environment, Shown
from device_runtime.store.keys import at_rest, host_key, os_keyring
from device_runtime.view.sanitizer import sanitized
from device_runtime.view.server import _harmless
from odp._system.extras import _HOME, advice, is_installed, require
from odp.datasets import Ratings
from odp.errors import ConfigurationError, StateError
from odp.models.litert.population import OwnProgram
from odp.research.simulation.inputs import notes
from server.storage.postgresql import open_postgresql

Hide = Callable[..., None]


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Hide:
    def hidden(*modules: str) -> None:
        for module in modules:
            monkeypatch.setitem(sys.modules, module, None)

    return hidden


def test_each_advice_names_an_extra_that_installs_the_package() -> None:
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    extras = declared["project"]["optional-dependencies"]
    # What comes with another package.
    inside = {"keras": "tensorflow", "flatbuffers": "ai-edge-litert"}
    for module, (package, extra) in _HOME.items():
        wanted = inside.get(package, package)
        assert any(line.startswith((f"{wanted}>", f"{wanted}[")) for line in extras[extra]), module
        assert advice(module) == f"{package} is not installed: pip install 'odp-platform[{extra}]'"


def test_a_hidden_module_counts_as_missing_and_another_does_not(hide: Hide) -> None:
    require("psutil", to="read the battery")
    assert is_installed("psutil")
    hide("psutil")
    with pytest.raises(ConfigurationError, match=r"^cannot read the battery: psutil is .*'odp-platform\[device\]'$"):
        require("nh3", "psutil", to="read the battery")


def test_without_nh3_a_result_is_an_error_for_the_app_and_a_line_for_the_person(hide: Hide, tmp_path: Path) -> None:
    hide("nh3")
    words = r"cannot show pages of a service, .*: nh3 is not installed: pip install 'odp-platform\[device\]'"
    with pytest.raises(ConfigurationError, match=words):
        sanitized("<p>hello</p>")
    # In the frame of the person's page.
    assert _harmless("<p>hello</p>").startswith("<p>This page cannot be shown: cannot show pages of a service")
    with Device(tmp_path / "app", environment=Environment(keyring=False)) as device:
        with pytest.raises(ConfigurationError, match=words):
            device.show(Shown("ab" * 16))
        # The person's own page needs no sanitizer.
        assert _status(device.show()) == 200


def _status(url: str) -> int:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_without_psutil_a_sensor_names_the_extra(hide: Hide, tmp_path: Path) -> None:
    hide("psutil")
    sensors = MachineSensors(tmp_path)
    for read in (sensors.charging, sensors.battery, sensors.temperature):
        with pytest.raises(Unreadable, match=r"pip install 'odp-platform\[device\]'"):
            read()


def test_without_keyring_a_key_in_it_is_missed_by_name(hide: Hide, tmp_path: Path) -> None:
    kept: dict[tuple[str, str], str] = {}
    ring = SimpleNamespace(
        get_password=lambda service, entry: kept.get((service, entry)),
        set_password=lambda service, entry, value: kept.update({(service, entry): value}),
    )
    host_key(tmp_path / "in-ring", ring=lambda: ring)
    hide("keyring")
    assert os_keyring() is None
    with pytest.raises(
        StateError,
        match=r"no keyring is available: keyring is not .*'odp-platform\[keyring\]'; unlock",
    ):
        host_key(tmp_path / "in-ring", ring=os_keyring)
    assert doctor._keyring() == advice("keyring")
    host_key(tmp_path / "in-file", ring=os_keyring)
    protected = at_rest(tmp_path / "in-file")
    assert protected is not None
    assert "pip install 'odp-platform[keyring]'" in protected.text


def test_without_numba_a_large_simulation_says_what_would_be_faster(hide: Hide) -> None:
    users = 25_000
    large = Ratings(
        name="large",
        offsets=np.arange(users + 1, dtype=np.int64) * 20,
        items=np.tile(np.arange(20, dtype=np.int32), users),
        values=np.ones(users * 20, dtype=np.float32),
        n_items=20,
        low=1.0,
        high=5.0,
    )
    small = odp.data.synthetic_movielens(n_users=150, n_items=30, ratings_per_user=12)
    assert notes(large) == []
    hide("numba")
    assert notes(large) == [f"500,000 ratings take several times longer, as {advice('numba')}"]
    assert not any("numba" in line for line in notes(small))


def test_without_the_driver_postgresql_names_the_extra(hide: Hide) -> None:
    hide("psycopg")
    with pytest.raises(ConfigurationError, match=r"^cannot use PostgreSQL: .* pip install 'odp-platform\[postgres\]'$"):
        open_postgresql("postgresql+psycopg://localhost/odp")


def test_without_pyarrow_a_table_names_the_extra(hide: Hide, tmp_path: Path) -> None:
    hide("pyarrow")
    (tmp_path / "mine.csv").write_text("user,item,rating\n1,2,3\n")
    with pytest.raises(
        ConfigurationError, match=r"^cannot read tables: pyarrow is .*: pip install 'odp-platform\[data\]'$"
    ):
        odp.load(tmp_path / "mine.csv")


def test_without_litert_no_network_runs_or_is_trained(hide: Hide) -> None:
    hide("ai_edge_litert")
    words = r"ai-edge-litert is not installed: pip install 'odp-platform\[litert\]'"
    program = object()
    with pytest.raises(ConfigurationError, match=f"^cannot run networks: {words}"):
        OwnProgram(program)  # type: ignore[arg-type]
    trainer = IsolatedTrainer(seconds=1.0, say=lambda line: None)
    try:
        with pytest.raises(ConfigurationError, match=f"^cannot train networks on this device: {words}"):
            trainer.require(program, most_examples=1)  # type: ignore[arg-type]
    finally:
        trainer.close()


@pytest.mark.parametrize("module", ["tensorflow", "ai_edge_litert"])
def test_without_tensorflow_a_keras_model_names_the_extra(hide: Hide, module: str) -> None:
    hide("tensorflow", module)
    with pytest.raises(
        ConfigurationError, match=r"^cannot compile a Keras model: .*pip install 'odp-platform\[keras\]'$"
    ):
        odp.KerasModel(object(), "mse")
    with pytest.raises(ConfigurationError, match=r"^cannot compile two towers: .*pip install 'odp-platform\[keras\]'$"):
        odp.TwoTower(user=object(), item=object(), loss="mse", items=10)


def test_without_numba_draw_and_discard_names_the_extra(hide: Hide, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "odp.algorithms.draw_and_discard.kernels"
    monkeypatch.delitem(sys.modules, name, raising=False)
    hide("numba")
    with pytest.raises(
        ConfigurationError, match=r"cannot compute Draw and Discard: .*pip install 'odp-platform\[fast\]'"
    ):
        importlib.import_module(name)
