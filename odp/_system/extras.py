"""What `pip install 'odp-platform[EXTRA]'` adds, said in one line where it is missed."""

from __future__ import annotations

import importlib.util

from odp.errors import ConfigurationError

#: Module -> (the package that has it, the extra that installs it).
_HOME = {
    "ai_edge_litert": ("ai-edge-litert", "litert"),
    "boto3": ("boto3", "s3"),
    "flatbuffers": ("flatbuffers", "litert"),
    "keras": ("keras", "keras"),
    "keyring": ("keyring", "keyring"),
    "nh3": ("nh3", "device"),
    "numba": ("numba", "fast"),
    "psutil": ("psutil", "device"),
    "onnx": ("onnx", "onnx"),
    "pyarrow": ("pyarrow", "data"),
    "opentelemetry": ("opentelemetry-sdk", "traces"),
    "psycopg": ("psycopg", "postgres"),
    "ray": ("ray", "ray"),
    "starlette": ("starlette", "dashboard"),
    "uvicorn": ("uvicorn", "dashboard"),
    "tensorflow": ("tensorflow", "keras"),
}


def is_installed(module: str) -> bool:
    """Whether a module can be imported; nothing is."""
    return importlib.util.find_spec(module) is not None


def advice(module: str, *, extra: str | None = None) -> str:
    """What is missing and what installs it: by default the extra that has the module and nothing else."""
    package, home = _HOME[module]
    return f"{package} is not installed: pip install 'odp-platform[{extra or home}]'"


def require(*modules: str, to: str, extra: str | None = None) -> None:
    """Returns if all modules can be imported. Raises ConfigurationError, with the extra that adds the first other one.

    ``to``: what they are needed for, such as "train networks".
    """
    for module in modules:
        if not is_installed(module):
            raise ConfigurationError(f"cannot {to}: {advice(module, extra=extra)}")
