"""Generates odp/v1 from protos/; ``--check`` proves instead that the checked-in code is what would be generated."""

from __future__ import annotations

import filecmp
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = sorted((ROOT / "protos" / "odp" / "v1").glob("*.proto"))
TARGET = ROOT / "odp" / "v1"


def generate(folder: Path) -> None:
    """Writes messages, type stubs and gRPC stubs under ``folder``/odp/v1."""
    plugin = Path(sys.executable).parent / "protoc-gen-mypy_grpc"
    (folder / "odp" / "v1").mkdir(parents=True, exist_ok=True)
    failed = protoc.main(
        [
            "protoc",
            f"-I{ROOT / 'protos'}",
            f"--python_out={folder}",
            f"--pyi_out={folder}",
            f"--grpc_python_out={folder}",
            f"--plugin=protoc-gen-mypy_grpc={plugin}",
            f"--mypy_grpc_out=quiet:{folder}",
            *map(str, PROTOS),
        ]
    )
    if failed:
        sys.exit(failed)
    # A file without services has an empty gRPC module: nothing to check in.
    for proto in PROTOS:
        if "\nservice " not in proto.read_text(encoding="utf-8"):
            for stub in (folder / "odp" / "v1").glob(f"{proto.stem}_pb2_grpc.py*"):
                stub.unlink()


def main() -> None:
    """Entry point."""
    if "--check" not in sys.argv[1:]:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as fresh:
        generate(Path(fresh))
        made = Path(fresh) / "odp" / "v1"
        names = sorted({path.name for path in made.iterdir()} | {path.name for path in TARGET.glob("*_pb2*")})
        _same, different, missing = filecmp.cmpfiles(made, TARGET, names, shallow=False)
    if different or missing:
        sys.exit(
            f"odp/v1 is not what protos/ generate: {', '.join(different + missing)}; run `make proto` and commit it"
        )


if __name__ == "__main__":
    main()
