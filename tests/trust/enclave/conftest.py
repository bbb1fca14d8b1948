"""Chips under test; a hostile enclave as a process, and the platform under it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from trust.enclave.rig import Rig

from odp.trust.enclave.launcher import LaunchedEnclave, launch
from odp.trust.enclave.policy import EnclavePolicy

IMAGES = Path(__file__).resolve().parent / "images"
POLICY = EnclavePolicy(role="aggregator", minimum_cohort=7).to_bytes()


class Hostile:
    """A launched hostile enclave, which does what it is asked."""

    def __init__(self, enclave: LaunchedEnclave, folder: Path) -> None:
        self.enclave = enclave
        self.folder = folder
        enclave.channel.settimeout(60.0)
        self._stream = enclave.channel.makefile("rwb")

    def ask(self, attempt: str, **given: object) -> Any:
        """What came of the attempt; None where the enclave is gone."""
        self._stream.write(json.dumps({"attempt": attempt, **given}).encode() + b"\n")
        self._stream.flush()
        line = self._stream.readline()
        return json.loads(line) if line else None


@pytest.fixture(scope="session")
def images() -> Iterator[None]:
    """Puts the packages of ``images/`` where Python finds them."""
    if sys.platform != "linux":
        pytest.skip("enclave processes need Linux")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(IMAGES))
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The platform of all enclaves here."""
    return tmp_path_factory.mktemp("hostile") / "platform"


def _launched(folder: Path, stack: ExitStack, **changes: Any) -> Hostile:
    given = {"platform_folder": folder, "entry": "hostile_enclave.entry", "policy": POLICY}
    return Hostile(stack.enter_context(launch(**{**given, **changes})), folder)


@pytest.fixture
def start(images: None, folder: Path) -> Iterator[Callable[..., Hostile]]:
    """Launches hostile enclaves for one test."""
    with ExitStack() as stack:
        yield lambda **changes: _launched(folder, stack, **changes)


@pytest.fixture(scope="session")
def hostile(images: None, folder: Path) -> Iterator[Hostile]:
    """One hostile enclave for all attempts that leave it alive."""
    with ExitStack() as stack:
        yield _launched(folder, stack)


@pytest.fixture(scope="session")
def twin(images: None, folder: Path) -> Iterator[Hostile]:
    """A second launch of the same image, at the same time."""
    with ExitStack() as stack:
        yield _launched(folder, stack)


@pytest.fixture(scope="session")
def debugged(images: None, folder: Path) -> Iterator[Hostile]:
    """The same image, launched for debugging."""
    with ExitStack() as stack:
        yield _launched(folder, stack, debug=True)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(tmp_path_factory.mktemp("platform"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(tmp_path_factory.mktemp("other"))
