"""The benchmarks of networks measure what they say: one stored program, and the same clients on both sides."""

from __future__ import annotations

import sys

import pytest

from benchmarks import federated_devices, federated_network

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed: pip install 'odp-platform[litert]'")

from benchmarks import federated_program
from odp.models.litert.trained import TrainedNetwork


def test_the_stored_program_is_the_network_that_its_name_says() -> None:
    model = federated_program.stored_network()
    assert [one.shape for one in model.program.parameters] == [(784, 64), (64,), (64, 10), (10,)]
    task = federated_devices._task(20, 1)
    assert TrainedNetwork.of(task.definition().network).size == model.size


def test_a_device_of_the_benchmark_trains() -> None:
    users = federated_devices._users(2)
    assert federated_devices._training(users, most=1) > 0


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="walls need Linux")
def test_both_directions_of_the_bare_transport_carry_the_model() -> None:
    assert federated_devices._transport(200_000, calls=2) > 0


def test_without_tensorflow_there_are_no_figures_of_the_simulator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.federated_network.importlib.util.find_spec", lambda name: None)
    assert federated_network.figures(quick=True) == []
    assert "TensorFlow" in capsys.readouterr().err


def test_the_bare_loop_trains_what_the_simulator_trains() -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed: pip install 'odp-platform[keras]'")
    world = federated_network._world(2)
    federated_network._bare(world)(1)  # raises where the two differ on the first client
    assert federated_network._round(world).keys() == {"sums", "noise"}
