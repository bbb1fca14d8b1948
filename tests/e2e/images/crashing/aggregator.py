"""The aggregator's enclave, armed."""

from __future__ import annotations

import socket

from crashing.arming import receive_points
from odp.trust.enclave.guest import Guest
from trusted_aggregator.enclave import process as enclave_process
from trusted_aggregator.enclave.process import warm_up

__all__ = ["run", "warm_up"]


def run(channel: socket.socket, guest: Guest) -> None:
    receive_points(channel)
    enclave_process.run(channel, guest)
