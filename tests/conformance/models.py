"""The stores of a distributor's host that ``distributor/test_model_store.py`` holds to what ``ModelStore`` promises."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from conformance.buckets import BUCKET

from distributor.model_folders import ModelFolders
from distributor.model_objects import ModelObjects
from distributor.model_store import ModelStore
from odp.storage.s3 import S3Objects


def in_bucket(path: Path) -> ModelObjects:
    """The store of a prefix that belongs to ``path``."""
    return ModelObjects(S3Objects(f"s3://{BUCKET}/{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"))


#: Every implementation, by name: opens the store of a folder, made on first use, whose whole content is the store's.
MODEL_STORES: dict[str, Callable[[Path], ModelStore]] = {"folders": ModelFolders, "objects": in_bucket}
#: Those whose content is in the folder, so that it can be copied.
FILE_STORES = ("folders",)
