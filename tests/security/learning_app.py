"""An app of one's own that learns on its person's device, and all that the device says to it meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

from security.outside import LIMITS
from transcripts import Call, Observation

import odp
from device_runtime.sdk import Environment
from device_runtime.store.store import Store, store_path


def learns(state: Path, services: Path, population: str) -> Observation:
    """One call of ``learn``: what it returned or raised, what the device said, how long it took, what it cost."""
    lines: list[str] = []
    with odp.Device(state, limits=LIMITS, say=lines.append, environment=Environment(keyring=False)) as device:
        begin = time.monotonic()
        try:
            outcome = repr(device.learn(population, services=services))
        except odp.OdpError as error:
            outcome = repr(error)
        end = time.monotonic()
        shown = device.privacy()
    with Store.open(store_path(state, 0), durable=False) as store:
        charged = tuple(each.terms.task_sha256 for each in store.charged())
    facts = tuple((name, repr(value)) for name, value in shown.items() if name not in ("contributions", "at_rest"))
    call = Call("/app/learn", (), "OK", (), began=begin, ended=begin)
    return Observation.of(
        [call], devices=1, outcome=f"{outcome} {lines}", charged=(charged,), ledger=facts, ended=end
    )  # fmt: skip
