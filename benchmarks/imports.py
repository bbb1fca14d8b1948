"""How long `import odp` and cheap commands take in fresh processes, and that they load nothing heavy.

Processes may write bytecode, as an installed package has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.harness import Figure, Limit
from odp.errors import ServiceError

#: What a developer's first lines, and a device, must not wait for.
FORBIDDEN = ("tensorflow", "scipy", "dp_accounting", "matplotlib", "sqlalchemy")
TOUCH = "import odp; odp.Task, odp.DPAM, odp.MatrixFactorization"
#: What `odp device run` loads before it does anything.
DEVICE_RUN = "import odp.cli.main, device_runtime; device_runtime.start"

_SECONDS = 60.0


def run(quick: bool) -> list[Figure]:
    """Best of several fresh processes each, against a process that does nothing."""
    times = 3 if quick else 9
    nothing = Limit("python -c pass", best_seconds(["-c", "pass"], times))
    loaded = loaded_of(FORBIDDEN, TOUCH)
    return [
        Figure("import odp", best_seconds(["-c", "import odp"], times), "s", "<= 0.5", nothing),
        Figure("import odp, three names touched", best_seconds(["-c", TOUCH], times), "s", "<= 0.5", nothing),
        Figure("odp --help", best_seconds(["-m", "odp.cli.main", "--help"], times), "s", "<= 0.7", nothing),
        Figure("odp data list", best_seconds(["-m", "odp.cli.main", "data", "list"], times), "s", "<= 0.5", nothing),
        Figure("modules of odp device run", best_seconds(["-c", DEVICE_RUN], times), "s", "<= 0.9", nothing),
        Figure("heavy modules loaded", len(loaded), "modules", "<= 0", Limit("looked for", len(FORBIDDEN))),
    ]


def best_seconds(arguments: Sequence[str], times: int) -> float:
    """The shortest wall time of so many fresh interpreters. Raises ServiceError where one fails."""
    best = float("inf")
    for _ in range(times):
        started = time.perf_counter()
        _python(arguments)
        best = min(best, time.perf_counter() - started)
    return best


def loaded_of(modules: Sequence[str], code: str) -> list[str]:
    """Those of ``modules`` that a fresh interpreter has loaded after ``code``."""
    told = _python(["-c", f"{code}\nimport sys\nprint(*(name for name in {tuple(modules)!r} if name in sys.modules))"])
    return told.split()


def _python(arguments: Sequence[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False, env=environment
    )
    if done.returncode:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        raise ServiceError(f"python {' '.join(arguments)} ended with {done.returncode}: {last}")
    return done.stdout
