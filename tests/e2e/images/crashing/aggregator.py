"""The aggregator's enclave, armed."""

from __future__ import annotations

import socket

from crashing.arming import receive_points
from odp.enclave.guest import Guest
from trusted_aggregator.enclave import process as enclave_process
from trusted_aggregator.enclave.rehearsal import rehearse_full_participation


def warm_up() -> None:
    """As the real one, but for tasks that sample: no test has one in this image, which starts so much sooner."""
    rehearse_full_participation()


def run(channel: socket.socket, guest: Guest) -> None:
    receive_points(channel)
    enclave_process.run(channel, guest)
