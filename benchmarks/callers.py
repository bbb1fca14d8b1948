"""What a benchmark shows at control listeners: the certificate of another program, from the same development CA."""

from __future__ import annotations

from pathlib import Path

from odp._system.files.state_folder import StateFolder
from odp.crypto.signing import SigningKey
from odp.operations.local.processes import Child
from odp.signed.charter import approve, found
from odp.transport.channel import connect
from odp.transport.tls import TlsIdentity, development_identity
from server.clients import AggregatorClient


def program_identity(root: Path, role: str, ca_folder: Path) -> TlsIdentity:
    """The identity of a program that does not run, whose folder is inside ``root``."""
    with StateFolder.open(root / role, role) as state:
        return development_identity(state, ca_folder)


def aggregator_client(child: Child, identity: TlsIdentity) -> AggregatorClient:
    """A server's connection to an aggregator that serves; closed with the process."""
    return AggregatorClient(
        connect(child.address, identity.ca_pem),
        connect(child.control_address, identity.ca_pem, identity=identity),
        address=child.address,
        control_address=child.control_address,
    )


def found_population(
    client: AggregatorClient, population: str, developer: SigningKey, *, issuer_key: bytes = b""
) -> None:
    """Founds a population that belongs to ``developer``, whom the aggregator lists as a founder."""
    client.set_charter(approve(found(population, owners=[developer.public], issuer_key=issuer_key), developer))
