"""Fixed times (``device_runtime.round.fixed_times``) for tests in which real time is not what they are about."""

from __future__ import annotations

import threading
from typing import Any

from device_runtime.round.fixed_times import FixedTimes


def until_finished(seconds: float, finished: threading.Event) -> None:
    """Waits for a computation alone, and not for the whole time of it."""
    assert finished.wait(60)


def impatient_times(**changes: Any) -> FixedTimes:
    """Fixed times that end as soon as a computation has finished, on any machine."""
    return FixedTimes(**{"wait": until_finished, "speed": lambda: 0.0, **changes})
