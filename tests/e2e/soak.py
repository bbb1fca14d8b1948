"""Simulated hours of a platform that is killed all the time: ``python tests/e2e/soak.py --hours 24``.

Real processes (server, distributor, issuer, a root with two leaves, devices) under one clock, which moves by ten
minutes. Each simulated hour has a task, and every ten simulated minutes one program is killed and started again. In the
end the log alone has to explain everything: each task's rounds, contributions, charges, ε and model.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path

# The tests' folders have names of packages, which come first.
sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

_STEP_SECONDS = 600.0
_STEPS = 6  # in an hour
_EPSILON = 0.4


def tell(line: str) -> None:
    """One line of progress."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Runs the soak; returns 0 where everything holds."""
    parser = argparse.ArgumentParser(description="Simulated hours of kills, and what must hold afterwards.")
    parser.add_argument("--hours", type=int, default=24, help="simulated hours")
    hours: int = parser.parse_args().hours
    from e2e import shifted_clock
    from program_template import Template

    with tempfile.TemporaryDirectory(prefix="odp-soak-") as folder, contextlib.ExitStack() as stack:
        root = Path(folder)
        clock = root / "clock"
        shifted_clock.create(clock)
        # Before the platform's code is loaded, here as in its processes.
        shifted_clock.install(clock)
        template = stack.enter_context(Template.started(clock))
        stack.enter_context(template.forking())
        return _soak(root / "services", clock, hours, stack)


def _soak(root: Path, clock: Path, hours: int, stack: contextlib.ExitStack) -> int:
    from e2e import shifted_clock
    from e2e.killing import DEVICE_HOST, Platform
    from e2e.soak_checks import check, task_of

    started = time.monotonic()
    platform = Platform(root, stack, leaves=2, clock=clock)
    programs = ["leaf-0", "aggregator", DEVICE_HOST, "server", "leaf-1", "distributor", "issuer"]
    handles, kills = [], 0
    for hour in range(hours):
        task = task_of(hour, epsilon=_EPSILON)
        platform.submit(task)
        assert platform.handle is not None
        handles.append(platform.handle)
        if platform.devices is None:
            platform.start(DEVICE_HOST)
        for _ in range(_STEPS):
            shifted_clock.advance(clock, _STEP_SECONDS)
            name = programs[kills % len(programs)]
            kills += 1
            platform.kill_and_restart(name)
            if name != DEVICE_HOST:
                platform.serving(name)
        # Whoever found nothing to do comes again at once.
        platform.kill_and_restart(DEVICE_HOST)
        platform.finish()
        minutes = (time.monotonic() - started) / 60
        tell(f"hour {hour + 1} of {hours}: task finished, {kills} kills, {minutes:.1f} minutes")
        platform.next_task()
    check(platform, handles, epsilon=_EPSILON)
    tell(f"{hours} simulated hours, {kills + hours} kills: ε, counts and models are those of the log")
    return 0


if __name__ == "__main__":
    sys.exit(main())
