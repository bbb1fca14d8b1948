"""The newest model of a population, with the trust and the folders of a device host.

Which one is the newest is the server's answer (``published_models`` of ``server/storage``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from device_runtime.host.program import TABLES, catalogue_memory, charter_memory, log_guard
from device_runtime.inference.offline import Available, newest_model
from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.services import Services
from device_runtime.rows.table_cache import TableCache
from odp.services.folder import ServicesFolder
from odp.trust.enclave.reference_values import ReferenceValues

#: Of a state folder: the offers of models that were fetched completely.
MODELS = "models"


def newest_of(services: ServicesFolder, population: str, **settings: Any) -> Available:
    """``fetch_newest`` from the services of a local `odp up`. Raises as that."""
    return fetch_newest(
        population, server=services.server_address(), ca=services.ca, reference_values=services.reference_values,
        **settings,
    )  # fmt: skip


def fetch_newest(
    population: str,
    *,
    state: Path,
    server: str,
    ca: Path,
    reference_values: Path,
    allow_private_addresses: bool = False,
    of_examples: bool = False,
    clock: Callable[[], float] = time.time,
) -> Available:
    """The newest model, or the last complete one of the state folder while nobody answers.

    Args:
      state: the folder of the devices, which keeps tables, and what was seen of the log.
      server, ca, reference_values, allow_private_addresses: as of ``device_runtime.Config``.
      of_examples: the model that predicts of examples, and not the one that scores items.
      clock: seconds since the epoch.

    Raises:
      ConfigurationError: a file is missing or malformed.
      ServiceUnavailable, ServiceError, TransparencyError, PrivacyError: as ``newest_model``.
    """
    pinned = ReferenceValues.load(reference_values)
    clients = Services(server, ca, pinned=PinnedAddresses.of(pinned, allow_private=allow_private_addresses))
    try:
        return newest_model(
            clients,
            population,
            cache=TableCache(state / TABLES),
            folder=state / MODELS,
            charters=charter_memory(pinned, state),
            catalogues=catalogue_memory(clients, state),
            log=lambda: log_guard(clients, pinned, state, clock=clock),
            of_examples=of_examples,
        )
    finally:
        clients.close()
