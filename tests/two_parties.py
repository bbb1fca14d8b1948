"""A leader and a helper over TLS on free ports, and the devices that ask them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from callers import control_channel

import distributor
from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.enclaves import Enclaves
from device_runtime.network.services import Services, Traffic
from device_runtime.rows.retrieval import Retrievals, SealedRows
from device_runtime.tasks.assignment import Work, open_model
from distributor import enclave_process
from distributor.helper_program import HelperConfig, helper_key, start_helper
from odp.errors import ServiceUnavailable
from odp.protocol.wire.encoding import Encoding, rounded
from odp.protocol.wire.model import Slices
from odp.signed.task import open_task, sign_task
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.transport.running import Running
from odp.trust.enclave.in_thread import InThread
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.v1 import broadcast_pb2, distributor_pb2_grpc, retrieval_pb2_grpc

SECONDS = 60.0
IMAGE = "sha384:" + "0" * 96
NOBODY = "127.0.0.1:1"
METHODS = {
    "enclave": broadcast_pb2.BroadcastTerms.METHOD_UNSPECIFIED,
    "all": broadcast_pb2.BroadcastTerms.METHOD_ALL,
    "pir": broadcast_pb2.BroadcastTerms.METHOD_PIR,
}


@dataclass
class Recorder:
    """Lengths of messages in their order: (call, direction, bytes)."""

    seen: list[tuple[str, str, int]] = field(default_factory=list)

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(request: Any, *arguments: Any, **keywords: Any) -> Any:
            self.seen.append((name, "up", request.ByteSize()))
            reply = call(request, *arguments, **keywords)
            if hasattr(reply, "ByteSize"):
                self.seen.append((name, "down", reply.ByteSize()))
                return reply
            return self._stream(name, reply)

        return recorded

    def _stream(self, name: str, replies: Iterator[Any]) -> Iterator[Any]:
        for reply in replies:
            self.seen.append((name, "down", reply.ByteSize()))
            yield reply


class Parties:
    """A leader with its enclave and a helper, each on its own state folder; ``lines`` is what both logged."""

    def __init__(self, root: Path, kit: Any) -> None:
        self.root = root
        self.kit = kit
        self.lines = kit.Lines()
        self.key = helper_key(root / "helper")
        self.helper_port = 0
        self.helper: Running | None = None
        self.encoded: dict[tuple[str, str], Any] = {}
        self._stack = contextlib.ExitStack()
        self.start_helper()
        self.leader = self._leader()
        self.channel = self._stack.enter_context(connect(self.leader.address, self.leader.ca_pem))
        control = self._stack.enter_context(control_channel(self.leader, root, root / "ca"))
        self.publisher = distributor_pb2_grpc.DistributorControlServiceStub(control)
        self.stub = retrieval_pb2_grpc.RetrievalServiceStub(self.channel)
        self.services = Services(NOBODY, self.leader.ca_pem, pinned=PinnedAddresses.at(distributor=self.leader.address))
        self._stack.callback(self.services.close)

    def log(self, program: str) -> Log:
        return Log(program, stream=self.lines, clock=lambda: 0.0)

    def start_helper(self) -> None:
        listen = f"127.0.0.1:{self.helper_port}"
        config = HelperConfig(state=self.root / "helper", listen=listen, ca_folder=self.root / "ca")
        self.helper = start_helper(config, log=self.log("helper"))
        self.helper_port = int(self.helper.address.rpartition(":")[2])

    def stop_helper(self) -> None:
        assert self.helper is not None
        self.helper.stop()

    def _leader(self, *, helper: bool = True) -> Running:
        assert self.helper is not None
        config = distributor.Config(
            state=self.root / "leader",
            platform=self.root / "platform",
            listen="127.0.0.1:0",
            control_listen="127.0.0.1:0",
            ca_folder=self.root / "ca",
            helper=self.helper.address if helper else None,
        )
        running = distributor.start(
            config, log=self.log("distributor"), launch=InThread(enclave_process.run, digest=IMAGE)
        )
        self._stack.callback(running.stop)
        return running

    def developer(self, method: str, *, key: str | None = None) -> Any:
        """Signs models for a task whose devices ask by ``method``."""
        found = self.kit.Developer(f"films-{method}")
        terms = broadcast_pb2.BroadcastTerms(method=METHODS[method])
        if method == "pir":
            terms.helper_key = bytes.fromhex(self.key if key is None else key)
        if method != "enclave":
            found.definition.broadcast.CopyFrom(terms)
        found.task = sign_task(found.definition, found.key)
        found.definition = open_task(found.task)
        return found

    def publish(self, model: Any) -> None:
        self.publisher.Publish(model.stream(), timeout=SECONDS)

    def published(self, method: str, version: int = 0, encoding: Encoding = "float32") -> Any:
        developer = self.developer(method)
        model = developer.model(version)
        if encoding != "float32":
            tables = tuple(
                dataclasses.replace(table, rows=rounded(table.rows, encoding), encoding=encoding)
                if table.keyed
                else table
                for table in model.broadcast.tables
            )
            model = developer.signed(dataclasses.replace(model.broadcast, tables=tables))
        self.publish(model)
        return model

    def fetch(
        self, model: Any, keys: list[int], *, traffic: Traffic | None = None, pinned: bool = True, services: Any = None
    ) -> Slices:
        """What a device gets, by the method of the model's task."""
        services = self.services if services is None else services
        work = Work(open_model(model.task, model.manifest), 0, self.leader.address, NOBODY)
        wanted = np.array(keys, dtype=np.int64)
        traffic = Traffic() if traffic is None else traffic
        if work.model.definition.HasField("broadcast"):
            retrievals = Retrievals.over(services, helper_keys=[self.key] if pinned else [])
            retrievals.require(work.model)
            return retrievals.of(work.model).fetch(work, wanted, traffic)
        values = self._reference_values()
        enclaves = Enclaves(services, lambda: values)
        checked = enclaves.verified("distributor", self.leader.address)
        return SealedRows(services, checked, lambda _: checked, os.urandom).fetch(work, wanted, traffic)

    def fetch_later(self, model: Any, keys: list[int]) -> Slices:
        """As ``fetch`` of a device that asks again while somebody is away: channels reconnect within two seconds."""
        pause = threading.Event()
        for _ in range(200):
            with contextlib.suppress(ServiceUnavailable):
                return self.fetch(model, keys)
            pause.wait(0.1)
        raise AssertionError("the helper was away for 20 s")

    def _reference_values(self) -> ReferenceValues:
        policy = EnclavePolicy(role="distributor")
        return ReferenceValues(
            roots=(EmulatedPlatform.open(self.root / "platform").root_certificate_pem,),
            image_digests={"distributor": (IMAGE,)},
            policy_sha256={"distributor": (policy.sha256.hex(),)},
            allow_emulated=True,
        )

    def close(self) -> None:
        self._stack.close()
        self.stop_helper()
