"""Who calls whom in tests: the certificates of programs, and both services of a distributor's host as one stub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from distributor.program import control_servicer
from distributor.servicer import DistributorService, distributor_servicer
from odp._system.files.state_folder import StateFolder
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.transport.running import Running
from odp.transport.tls import TlsIdentity, development_identity
from odp.v1 import distributor_pb2_grpc


def program_identity(folder: Path, role: str, ca_folder: Path) -> TlsIdentity:
    """The identity of a program that does not run, under the development CA of ``ca_folder``."""
    with StateFolder.open(folder / f"caller-{role}", role) as state:
        return development_identity(state, ca_folder)


def control_channel(running: Running, folder: Path, ca_folder: Path, *, role: str = "server") -> grpc.Channel:
    """A channel to the control listener of ``running``, as a program of kind ``role``."""
    identity = program_identity(folder, role, ca_folder)
    return connect(running.control_address, running.ca_pem, identity=identity)


class DistributorStub:
    """Both services of a distributor's host; ``control`` reaches the control listener, where that is another one."""

    def __init__(self, channel: grpc.Channel, control: grpc.Channel | None = None) -> None:
        self._public = distributor_pb2_grpc.DistributorServiceStub(channel)
        self._control = distributor_pb2_grpc.DistributorControlServiceStub(control or channel)

    def __getattr__(self, method: str) -> Any:
        return getattr(self._control if method in ("Publish", "ForgetTask") else self._public, method)


def add_distributor(service: DistributorService, log: Log, server: grpc.Server) -> None:
    """Both services on one listener, for tests that are not about who may call."""
    distributor_pb2_grpc.add_DistributorServiceServicer_to_server(distributor_servicer(service, log), server)
    distributor_pb2_grpc.add_DistributorControlServiceServicer_to_server(control_servicer(service, log), server)
