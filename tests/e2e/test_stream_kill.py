"""A stream of DP-FTRL in an aggregator of real processes, killed between any two rounds: nothing lost, one charge."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from callers import program_identity
from e2e import crash
from stream_worlds import ROUNDS, SIZE, StreamWorld

from odp.crypto import domains
from odp.numerics.arrays import Int64Array
from odp.signed.ledger import LedgerPart
from odp.transport.channel import connect
from odp.trust.enclave.platform import EmulatedPlatform
from odp.v1 import aggregator_pb2, aggregator_pb2_grpc, attestation_pb2, attestation_pb2_grpc

pytestmark = [pytest.mark.processes, pytest.mark.proof]

SECONDS = 120.0
GROUPS = (range(3), range(3, 7))

_PROGRAM = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
import crash
crash.use_image(crash.AGGREGATORS[crash.NOISELESS])
from odp.trust.enclave.policy import EnclavePolicy
from trusted_aggregator import Config, start
policy = EnclavePolicy.from_bytes(bytes.fromhex(sys.argv[2]))
config = Config(state=Path(sys.argv[1]), listen="127.0.0.1:0", control_listen="127.0.0.1:0", policy=policy)
running = start(config)
print(running.address, running.control_address, flush=True)
running.wait()
"""


class Aggregator:
    """The program, its enclave and its platform process, whose enclave adds no noise; and the world's calls of it."""

    def __init__(self, world: Any, state: Path) -> None:
        self._world = world
        here = Path(crash.__file__).parent
        arguments = [str(state), world.policy.to_bytes().hex(), str(here), str(crash.IMAGES)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        address, control = self._process.stdout.readline().decode().split()
        identity = program_identity(state.parent, "server", state / "ca")
        channel = connect(address, identity.ca_pem)
        self._devices = aggregator_pb2_grpc.AggregatorServiceStub(channel)
        self._orders = aggregator_pb2_grpc.AggregatorControlServiceStub(
            connect(control, identity.ca_pem, identity=identity)
        )
        self._orders.SetCharter(aggregator_pb2.SetCharterRequest(charter=world.charter), timeout=SECONDS)
        attestation_pb2_grpc.AttestationServiceStub(channel).GetEvidence(
            attestation_pb2.GetEvidenceRequest(nonce=bytes(32)), timeout=SECONDS
        )

    def kill(self) -> None:
        """SIGKILL; its enclave ends with the socket to it."""
        self._process.kill()
        self._process.wait(SECONDS)

    def open(self, round: int) -> None:
        order, signature = self._world.order(round, domains.OPEN)
        request = aggregator_pb2.OpenRoundRequest(task=self._world.task, order=order, signature=signature)
        answer = self._orders.OpenRound(request, timeout=SECONDS)
        self._key = answer.round_key.hpke_key

    def submit(self, device: int, round: int) -> int:
        plaintext = self._world.contribution(device, round).SerializeToString()
        sealed = self._world.seal(plaintext, round, key=self._key)
        request = aggregator_pb2.SubmitRequest(
            task_sha256=self._world.task_sha256, round=round, sealed_contribution=sealed
        )
        return int(self._devices.Submit(request, timeout=SECONDS).refusal)

    def close(self, round: int) -> bytes:
        order, signature = self._world.order(round, domains.CLOSE)
        request = aggregator_pb2.CloseRoundRequest(order=order, signature=signature)
        return self._orders.CloseRound(request, timeout=SECONDS).release.SerializeToString()

    def ledger(self) -> Any:
        request = aggregator_pb2.GetLedgerRequest(task_sha256=self._world.task_sha256)
        reply = self._devices.GetLedger(request, timeout=SECONDS)
        return LedgerPart(0, reply.entries, reply.head, reply.signature).ledger()


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def test_a_stream_survives_kills_between_its_rounds_and_equals_the_simulation(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    world = StreamWorld(EmulatedPlatform.open(tmp_path / "other-chip"), "people", minimum=3)

    def begin() -> Aggregator:
        aggregator = Aggregator(world, tmp_path / "state")
        stack.callback(aggregator.kill)
        return aggregator

    aggregator = begin()
    encoder = world.algorithm.query(0).encoder()
    for round in range(ROUNDS):
        devices, early = GROUPS[round % 2], GROUPS[(round + 1) % 2]
        aggregator.open(round)
        if round == 1:
            aggregator.kill()
            aggregator = begin()
            aggregator.open(round)
        assert [aggregator.submit(device, round) for device in devices] == [0] * len(devices)
        if round:
            assert aggregator.submit(early[0], round) == aggregator_pb2.REFUSAL_NOT_DUE
        signed = aggregator.close(round)
        released: Int64Array = world.integers(signed)
        total = sum((world.vector(device, round) for device in devices), np.zeros(SIZE, dtype=np.int64))
        np.testing.assert_array_equal(released, encoder.step(total))
        world.learn(signed)
        # In the middle, and at the end; ``enclave/test_streams.py`` has a death at every step of every round.
        if round in (ROUNDS // 2, ROUNDS - 1):
            aggregator.kill()
            aggregator = begin()
        assert aggregator.close(round) == signed
    ledger = aggregator.ledger()
    ledger.verify()
    charged = [event for entry in ledger.entries for event in entry.events]
    assert len({entry.task_epsilon for entry in ledger.entries}) == 1
    assert len({type(event) for event in charged}) == 2
