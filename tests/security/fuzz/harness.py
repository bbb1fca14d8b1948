"""Coverage-guided fuzzing of every decoder of outside bytes: ``python tests/security/fuzz/harness.py -runs=20000``.

The first byte chooses the decoder, the rest is its input. Needs atheris (the extra ``dev``) and the repository's root
and ``tests`` on the path. Options are those of libFuzzer; a crash leaves its input in a file ``crash-*``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

_ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

with atheris.instrument_imports(include=["odp", "device_runtime"], enable_loader_override=False):
    from security.decoders import ERRORS, decoders

_DECODERS = decoders()


def one_input(data: bytes) -> None:
    """One input of libFuzzer."""
    if not data:
        return
    try:
        _DECODERS[data[0] % len(_DECODERS)].decode(data[1:])
    except ERRORS:
        return


def main() -> None:
    """Starts from the inputs that are accepted."""
    corpus = Path("corpus")
    corpus.mkdir(exist_ok=True)
    for number, decoder in enumerate(_DECODERS):
        (corpus / f"accepted-{number}").write_bytes(bytes([number]) + decoder.accepted)
    atheris.Setup([*sys.argv, str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
