"""Aggregators as programs over TLS, each enclave a thread of its own image, all on one chip."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from callers import program_identity
from hand_overs import NEW, Endorsers

from odp.crypto import domains
from odp.signed.ledger import LedgerPart
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.trust.enclave.in_thread import InThread
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import aggregator_pb2, aggregator_pb2_grpc, common_pb2, hand_over_pb2
from trusted_aggregator import Config, start
from trusted_aggregator.enclave import process as enclave_process
from trusted_aggregator.host.upgrading import PredecessorClient, upgrade

SECONDS = 60.0
ANY = "127.0.0.1:0"


class Programs:
    """Programs below ``folder``, on one chip and with one CA."""

    def __init__(self, folder: Path, world: Any, endorsers: Endorsers, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self.world = world
        self.endorsers = endorsers
        self.stack = stack
        self.log = io.StringIO()
        self.identity = program_identity(folder, "server", folder / "ca")

    def start(self, name: str, image: str, **changes: Any) -> Any:
        given = {"policy": self.world.policy, **changes}
        config = Config(
            state=self.folder / name, listen=ANY, control_listen=ANY, platform=self.folder / "platform",
            ca_folder=self.folder / "ca", **given,
        )  # fmt: skip
        launch = InThread(enclave_process.run, digest=image)
        running = start(config, log=Log("aggregator", stream=self.log), launch=launch)
        self.stack.callback(running.stop)
        public = self.stack.enter_context(connect(running.address, running.ca_pem))
        control = self.stack.enter_context(connect(running.control_address, running.ca_pem, identity=self.identity))
        running.client = PredecessorClient(
            public, control, address=running.address, control_address=running.control_address
        )
        running.orders = aggregator_pb2_grpc.AggregatorControlServiceStub(control)
        running.public = aggregator_pb2_grpc.AggregatorServiceStub(public)
        return running

    def excerpt(self, image: str, predecessor: str, policy: EnclavePolicy) -> hand_over_pb2.LogExcerpt:
        return self.endorsers.excerpt()

    def upgrade(self, old: Any, *, name: str = "new", image: str = NEW, **changes: Any) -> Any:
        given = {"pause": lambda seconds: None, "launch": InThread(enclave_process.run, digest=image), **changes}
        return upgrade(
            self.folder / name, self.folder / "platform", old.client, self.excerpt, image=image,
            log=Log("aggregator", stream=self.log), **given,
        )  # fmt: skip

    def open(self, program: Any, round: int = 0) -> None:
        order, signature = self.world.order(round, domains.OPEN)
        request = aggregator_pb2.OpenRoundRequest(task=self.world.task, order=order, signature=signature)
        self.signed_key = program.orders.OpenRound(request, timeout=SECONDS).round_key
        self.key = self.signed_key.hpke_key

    def fill(self, program: Any, round: int, devices: range) -> None:
        for device in devices:
            plaintext = self.world.contribution(device, round).SerializeToString()
            sealed = self.world.seal(plaintext, round, key=self.key)
            request = aggregator_pb2.SubmitRequest(
                task_sha256=self.world.task_sha256, round=round, sealed_contribution=sealed
            )
            assert program.public.Submit(request, timeout=SECONDS).refusal == aggregator_pb2.REFUSAL_UNSPECIFIED

    def close(self, program: Any, round: int) -> common_pb2.SignedRelease:
        order, signature = self.world.order(round, domains.CLOSE)
        request = aggregator_pb2.CloseRoundRequest(order=order, signature=signature)
        signed: common_pb2.SignedRelease = program.orders.CloseRound(request, timeout=SECONDS).release
        return signed

    def spent(self, program: Any) -> float:
        request = aggregator_pb2.GetLedgerRequest(task_sha256=self.world.task_sha256)
        reply = program.public.GetLedger(request, timeout=SECONDS)
        ledger = LedgerPart(0, reply.entries, reply.head, reply.signature).ledger().state
        return ledger.epsilon_of_population(delta=self.world.policy.population_delta)
