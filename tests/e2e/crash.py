"""Runs `odp` in a process that kills itself at one exact step: ``python crash.py POINT [POINT ..] -- ARGUMENTS``.

A point is ``module:Class.method:before`` or ``..:after``, and optionally ``:N`` for the N-th call of this process. The
process ends by SIGKILL, so nothing is flushed, closed or unlocked by it.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import signal
import sys
from typing import Any


def arm(point: str) -> None:
    """Makes this process end by SIGKILL before or after the N-th call of a method."""
    module, path, when, *rest = point.split(":")
    wanted = int(rest[0]) if rest else 1
    owner_name, method_name = path.split(".")
    owner = getattr(importlib.import_module(module), owner_name)
    method = getattr(owner, method_name)
    calls = itertools.count(1)

    @functools.wraps(method)
    def armed(*arguments: Any, **keywords: Any) -> Any:
        number = next(calls)
        if when == "before" and number == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*arguments, **keywords)
        if when == "after" and number == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, method_name, armed)


if __name__ == "__main__":
    end = sys.argv.index("--")
    for given in sys.argv[1:end]:
        arm(given)
    sys.argv = ["odp", *sys.argv[end + 1 :]]
    from odp.cli.main import main

    main()
