"""What the rows of the model cost a device: one line for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from odp.broadcast import ALL, method_of

if TYPE_CHECKING:
    from odp.task import Task


def broadcast_line(task: Task, traffic: Mapping[int, Mapping[str, Any]], whole: int) -> str:
    """Bytes down per device and round, and their share of the whole model of ``whole`` bytes.

    ``traffic`` is what a device host counted, by round (``device_runtime.statistics``): everything that devices
    received, the server's answers as well.
    """
    method = method_of(task.definition())
    down = [entry["bytes_down"] / entry["devices_in"] for entry in traffic.values() if entry["devices_in"]]
    if not down or not whole:
        return f"broadcast {method}: no round was counted"
    mean = sum(down) / len(down)
    line = f"broadcast {method}: bytes per device {mean:,.0f} per round, {100 * mean / whole:.1f} % of the model"
    return f"{line} ({whole:,} bytes)" + ("; one download served all devices of the host" if method == ALL else "")
