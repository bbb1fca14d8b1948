"""Lines of compiled modules, counted by a process of its own: bytes that are no code can stall or end their reader.

Run as a program it is that process. It has the standard library alone, ten seconds of processor and two GiB; macOS has
no such limit of memory, so that an image of strangers is better shown on Linux.

Source: the module marshal, "not intended to be secure against erroneous or maliciously constructed data".
"""

from __future__ import annotations

import contextlib
import json
import marshal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import CodeType

_PYTHON = ("-I", "-S", "-B")
_SECONDS, _PROCESSOR_SECONDS, _MEMORY = 60.0, 10, 2 << 30
_LENGTH = 8


def line_counts(modules: Sequence[bytes]) -> list[int]:
    """Of each module, the line of its last statement.

    Raises:
        ConfigurationError: one of them is no code of this version of Python.
    """
    from odp.errors import ConfigurationError  # this file is also a program that has no ``odp``

    data = b"".join(len(module).to_bytes(_LENGTH, "big") + module for module in modules)
    try:
        done = subprocess.run(  # this interpreter
            [sys.executable, *_PYTHON, __file__], input=data, capture_output=True, timeout=_SECONDS, check=True
        )
        counts: list[int] = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        raise ConfigurationError(
            f"its modules are no code of Python {sys.version.split()[0]}: look at it with the version that built it"
        ) from None
    return counts


def _last_line(code: CodeType) -> int:
    return max((line for part in _codes(code) for _, _, line in part.co_lines() if line is not None), default=0)


def _codes(code: CodeType) -> Iterator[CodeType]:
    waiting = [code]
    while waiting:
        code = waiting.pop()
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        yield code


def _main() -> None:
    import resource  # not there on Windows, where this file can be imported

    for kind, most in ((resource.RLIMIT_CPU, _PROCESSOR_SECONDS), (resource.RLIMIT_AS, _MEMORY)):
        with contextlib.suppress(ValueError):  # a lower limit holds already, or, on macOS, none can be set
            resource.setrlimit(kind, (most, most))
    counts = []
    while length := sys.stdin.buffer.read(_LENGTH):
        module = sys.stdin.buffer.read(int.from_bytes(length, "big"))
        counts.append(_last_line(marshal.loads(module)))  # read and never run
    print(json.dumps(counts))  # noqa: T201  # the answer


if __name__ == "__main__":
    _main()
