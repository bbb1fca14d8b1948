"""Training behind the walls of isolated code: the same bits as outside, and contained when a program is hostile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed: pip install 'odp[litert]'")

from device_runtime.isolated import CallLimits, HandlerFailed, IsolatedHost, MemoryStore, ServiceCode, process
from odp.errors import DataError
from odp.models.litert import service
from odp.models.litert.program import Program
from odp.models.litert.runner import Runner

from .compile_mlp import CLASSES, FEATURES, stored

_BATCHES = [np.array([0, 1, 2, 3]), np.array([4, 5])]


class _TrainerCode(ServiceCode):
    """The trainer, which the template has loaded, as a service."""

    def imports(self) -> list[str]:
        return list(service.PRELOADED)


@pytest.fixture(scope="module")
def host() -> Iterator[IsolatedHost]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "LIBRARIES", ("numpy", "ai_edge_litert", "flatbuffers"))
        code = _TrainerCode(service.__name__, "LocalTrainer", {})
        with IsolatedHost(code, limits=CallLimits(seconds=60.0, processor_seconds=60, failures=1000)) as started:
            yield started


def _data(program: Program) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(6, FEATURES)).astype(np.float32)
    y = generator.integers(0, CLASSES, 6).astype(np.int32)
    return (generator.normal(size=program.size) * 0.5).astype(np.float32), x, y


def _trained(host: IsolatedHost, program: Program, changes: Mapping[str, Any] = MappingProxyType({})) -> np.ndarray:
    start, x, y = _data(program)
    work = {**service.work_of(program, start, [x], y, _BATCHES, rate=0.1), **changes}
    store = MemoryStore()
    asked = host.request(store, "training", work, now=1.0)
    return service.difference_of(host.execute(store, asked, now=1.0).result, program)  # type: ignore[arg-type]


def test_training_behind_the_walls_gives_the_same_bits(host: IsolatedHost) -> None:
    program = stored()
    start, x, y = _data(program)
    expected = Runner(program).difference(start, [x], y, _BATCHES, rate=0.1)
    assert expected.any()
    np.testing.assert_array_equal(_trained(host, program), expected)


@pytest.mark.parametrize(
    "changes",
    [{"flatbuffer": "AAAA"}, {"start": ""}, {"batches": [[99]]}, {"rate": "fast"}, {"examples": []}, {"program": "{}"}],
    ids=lambda changes: next(iter(changes)),
)
def test_what_fails_behind_the_walls_is_a_call_that_failed(host: IsolatedHost, changes: dict[str, Any]) -> None:
    with pytest.raises(HandlerFailed):
        _trained(host, stored(), changes)


@pytest.mark.parametrize(
    "result",
    [{}, {"difference": "no base64"}, {"difference": "AAAA"}, {"difference": 3}],
    ids=["nothing", "text", "short", "number"],
)
def test_what_is_no_difference_is_refused(result: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        service.difference_of(result, stored())


def test_numbers_that_are_not_finite_are_refused() -> None:
    program = stored()
    wild = service._text(np.full(program.size, np.nan, dtype=np.float32))
    with pytest.raises(DataError, match="finite"):
        service.difference_of({"difference": wild}, program)
