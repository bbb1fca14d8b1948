"""A task that is paused over real services, of which the server dies in the pause.

In CI, ``server/test_driver.py`` has a restart in a pause, and ``cli/test_task.py`` the command, without processes.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from e2e.killing import DEVICE_HOST, Platform, a_task

pytestmark = [pytest.mark.processes, pytest.mark.proof]


def test_a_pause_outlasts_the_server_and_the_task_ends_as_any_other(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    platform = Platform(tmp_path, stack)
    task = a_task(rank=2)
    platform.submit(task)
    assert platform.handle is not None
    platform.handle.pause()
    platform.start(DEVICE_HOST)
    platform.kill("server")
    platform.start("server")
    status = platform.until(platform.status, what="the status after the restart")
    assert status.paused
    paused_at = len(status.rounds)
    assert paused_at <= 1, "a round may have been opened before the pause was stored"
    released = platform.until(
        lambda: [entry for entry in platform.status().rounds if entry.release.release] or not paused_at,
        what="the release of the open round",
    )
    assert released
    platform.until(lambda: "paused" in platform.status().waits_for.reason, what="the task's word that it is paused")
    assert len(platform.status().rounds) == paused_at
    platform.handle.resume()
    platform.check(task)
