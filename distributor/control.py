"""DistributorControlService: servers publish models and delete tasks.

Every caller showed a certificate that names it a server. What it publishes is signed by a developer; a distributor with
a list of developers accepts nothing from others.
"""

from __future__ import annotations

from collections.abc import Collection

from distributor.header import ModelHeader
from distributor.servicer import DistributorService, Replication
from odp.errors import ConfigurationError
from odp.transport.logs import Log
from odp.transport.service import servicer
from odp.v1 import distributor_pb2_grpc

NAME = "odp.v1.DistributorControlService"


class ServedDevelopers:
    """Restricts a distributor to models of some developers; otherwise as ``then`` (``servicer.Replication``)."""

    def __init__(self, keys: Collection[bytes], then: Replication) -> None:
        self._keys = keys
        self._then = then

    def check(self, header: ModelHeader) -> None:
        """Raises ConfigurationError for a model of another developer."""
        if header.task.developer_key not in self._keys:
            raise ConfigurationError(
                f"this distributor does not serve the developer {header.task.developer_key.hex()}; start it with "
                "--developer and this key"
            )
        self._then.check(header)

    def ensure(self, header: ModelHeader) -> None:
        self._then.ensure(header)


def control_servicer(service: DistributorService, log: Log) -> distributor_pb2_grpc.DistributorControlServiceServicer:
    """``service`` as gRPC methods for servers, its errors as statuses."""

    return servicer(
        distributor_pb2_grpc.DistributorControlServiceServicer,
        log,
        {"Publish": service.publish, "ForgetTask": lambda request, _: service.forget_task(request)},
    )
