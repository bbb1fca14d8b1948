"""Examines a whole deployment from outside: by what every program shows to anybody, and by folders on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from odp.operations.findings import Finding
from odp.operations.folders import examine_folder
from odp.operations.listeners import examine_listener
from odp.operations.scraping import examine_metrics
from odp.trust.enclave.reference_values import ReferenceValues


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Where the parts of a deployment are.

    Attributes:
        programs: role -> ``host:port`` of the listeners for everybody.
        ca: PEM bytes from which their certificates descend.
        reference_values: what devices pin; None: neither enclaves nor the log are examined.
        metrics: ``host:port`` of the endpoints of `--metrics`.
        folders: state folders on this machine.
    """

    programs: Mapping[str, Sequence[str]]
    ca: bytes
    reference_values: ReferenceValues | None = None
    metrics: Sequence[str] = ()
    folders: Sequence[Path] = field(default=())


def examine(deployment: Deployment, *, clock: Callable[[], float] = time.time) -> Iterator[Finding]:
    """All findings, program by program, as they come; each takes a bounded time."""
    values = deployment.reference_values
    for role, addresses in deployment.programs.items():
        for address in addresses:
            yield from examine_listener(role, address, deployment.ca, values, now=clock())
    for address in deployment.metrics:
        yield from examine_metrics(address, clock=clock)
    for folder in deployment.folders:
        yield from examine_folder(folder)
