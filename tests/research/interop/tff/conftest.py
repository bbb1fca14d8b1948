"""Skips these tests where TensorFlow Federated is missing, and ends the processes that it leaves behind."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

# TensorFlow and TensorFlow Federated write dozens of lines when they start.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
MISSING = importlib.util.find_spec("tensorflow_federated") is None
collect_ignore_glob = ["test_*.py"] if MISSING else []


@pytest.fixture(scope="session", autouse=True)
def no_worker_stays() -> Iterator[None]:
    """Ends the workers that TensorFlow Federated started for these tests."""
    yield
    import psutil

    for child in psutil.Process().children(recursive=True):
        if child.name() == "worker_binary":
            child.terminate()
            child.wait(10)
