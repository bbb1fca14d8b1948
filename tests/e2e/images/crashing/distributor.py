"""The distributor's enclave, armed."""

from __future__ import annotations

import socket

from crashing.arming import receive_points
from distributor import enclave_process
from distributor.enclave_process import warm_up
from odp.trust.enclave.guest import Guest

__all__ = ["run", "warm_up"]


def run(channel: socket.socket, guest: Guest) -> None:
    receive_points(channel)
    enclave_process.run(channel, guest)
