"""The developer, devices and host of the aggregator's own tests, for attacks on all of them together."""

from __future__ import annotations

import importlib.util
from pathlib import Path

# The folder has the name of the program that it tests, so the program is what an import would find.
_spec = importlib.util.spec_from_file_location(
    "aggregator_world", Path(__file__).resolve().parents[1] / "trusted_aggregator" / "conftest.py"
)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

make_world = _module.make_world
small = _module.small
make_statistics = _module.make_statistics
