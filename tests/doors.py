"""A device's door (``device_runtime.round.door``) for tests in which real time is not what they are about."""

from __future__ import annotations

import threading
from typing import Any

from device_runtime.round.door import Door


def until_finished(seconds: float, finished: threading.Event) -> None:
    """Waits for a computation alone, and not for the whole time of it."""
    assert finished.wait(60)


def impatient_door(**changes: Any) -> Door:
    """A door that opens as soon as a computation has finished, for any machine."""
    return Door(**{"wait": until_finished, "speed": lambda: 0.0, **changes})
