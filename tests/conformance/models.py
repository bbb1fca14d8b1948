"""The stores of a distributor's host that ``distributor/test_model_store.py`` holds to what ``ModelStore`` promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from distributor.model_folders import ModelFolders
from distributor.model_store import ModelStore

#: Every implementation, by name: opens the store of a folder, made on first use, whose whole content is the store's.
MODEL_STORES: dict[str, Callable[[Path], ModelStore]] = {"folders": ModelFolders}
