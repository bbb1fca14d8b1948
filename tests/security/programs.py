"""The six programs that listen, each started in the test's own process, for attacks on all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from callers import program_identity

from distributor import enclave_process as distributor_enclave
from distributor.helper_program import HelperConfig, start_helper
from distributor.program import Config as DistributorConfig, start as start_distributor
from odp.crypto.note import Kind, NoteKey
from odp.transport.logs import Log
from odp.transport.tls import TlsIdentity
from odp.trust.enclave.in_thread import InThread
from odp.trust.enrolment.attesters.emulated import ROOT_FILE, EmulatedVendor
from odp.trust.enrolment.issuer_program import Config as IssuerConfig, start as start_issuer
from odp.trust.log import witness
from server.program import Config as ServerConfig, start as start_server
from trusted_aggregator.enclave import process as aggregator_enclave
from trusted_aggregator.host.program import Config as AggregatorConfig, start as start_aggregator

LISTEN = "127.0.0.1:0"
_IMAGE = "sha384:" + "0" * 96
_NOBODY = "127.0.0.1:1"


@dataclass(frozen=True)
class Program:
    """How a program starts in a folder, with its CA in ``ca``; an empty request that it answers at once; its methods.

    Attributes:
      honest: a method, which ends with ``status`` for an empty request.
      methods: some of its methods, of every kind that it has.
      caller: of a program that admits no strangers, the kind of the program that may call it.
    """

    start: Callable[..., Any]
    honest: str
    status: grpc.StatusCode
    methods: tuple[str, ...]
    caller: str = ""

    def identity(self, folder: Path) -> TlsIdentity | None:
        """What a caller shows to this program, which runs in ``folder``."""
        return program_identity(folder, self.caller, folder / "ca") if self.caller else None


def _server(folder: Path, log: Log, *, reflection: bool = False) -> Any:
    addresses = {"distributor": _NOBODY, "aggregator": _NOBODY}
    return start_server(
        ServerConfig(
            state=folder / "state", listen=LISTEN, ca_folder=folder / "ca", reflection=reflection, **addresses
        ),
        log=log,
    )


def _distributor(folder: Path, log: Log, *, reflection: bool = False) -> Any:
    config = DistributorConfig(
        state=folder / "state", listen=LISTEN, control_listen=LISTEN, ca_folder=folder / "ca", reflection=reflection
    )
    return start_distributor(config, log=log, launch=InThread(distributor_enclave.run, digest=_IMAGE))


def _aggregator(folder: Path, log: Log, *, reflection: bool = False) -> Any:
    config = AggregatorConfig(
        state=folder / "state", listen=LISTEN, control_listen=LISTEN, ca_folder=folder / "ca", reflection=reflection
    )
    return start_aggregator(config, log=log, launch=InThread(aggregator_enclave.run, digest=_IMAGE))


def _helper(folder: Path, log: Log, *, reflection: bool = False) -> Any:
    return start_helper(
        HelperConfig(state=folder / "state", listen=LISTEN, ca_folder=folder / "ca", reflection=reflection), log=log
    )


def _issuer(folder: Path, log: Log, *, reflection: bool = False) -> Any:
    vendor = folder / "vendor"
    EmulatedVendor.open(vendor)
    config = IssuerConfig(
        state=folder / "state", developers=("0" * 64,), emulated_vendors=(vendor / ROOT_FILE,),
        listen=LISTEN, control_listen=LISTEN, ca_folder=folder / "ca", reflection=reflection,
    )  # fmt: skip
    return start_issuer(config, log=log)


def _witness(folder: Path, log: Log, *, reflection: bool = False) -> Any:
    key = NoteKey.generate("example.com/log").public(Kind.NOTE).text
    config = witness.Config(
        state=folder / "state", listen=LISTEN, ca_folder=folder / "ca", log_keys=(key,), reflection=reflection
    )
    return witness.start(config, log=log)


REFUSED, UNKNOWN = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
PROGRAMS = {
    "server": Program(
        _server, "LogService/GetCheckpoint", grpc.StatusCode.OK,
        ("ServerService/CheckIn", "ServerService/SubmitTask", "LogService/GetEntries", "TableService/GetTable",
         "CatalogueService/GetCatalogueSteps"),
    ),
    "distributor": Program(
        _distributor, "DistributorService/Select", REFUSED,
        ("DistributorService/Select", "DistributorService/Download", "RetrievalService/SelectPrivately"),
    ),
    "aggregator": Program(
        _aggregator, "AggregatorService/GetLedger", UNKNOWN,
        ("AggregatorService/Submit", "AggregatorService/SubmitStream", "SecureAggregationService/SendMasked",
         "AttestationService/GetEvidence"),
    ),
    "helper": Program(
        _helper, "HelperService/Answer", REFUSED, ("HelperService/Answer", "HelperService/Replicate"),
        caller="distributor",
    ),
    "issuer": Program(
        _issuer, "EnrolmentService/GetChallenge", grpc.StatusCode.OK,
        ("EnrolmentService/GetChallenge", "EnrolmentService/IssueToken"),
    ),
    "witness": Program(
        _witness, "WitnessService/AddCheckpoint", grpc.StatusCode.FAILED_PRECONDITION,
        ("WitnessService/AddCheckpoint",),
    ),
}  # fmt: skip
