"""Accountants that state too small an epsilon cannot come back unnoticed (rule P10).

The golden table of the design says by how much each is wrong: a central limit theorem for sampled rounds by up to 1.9
times, a fixed-size cohort charged as Poisson by several times, RDP under replacement by a factor of 2.
"""

from __future__ import annotations

import ast
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

import odp

ROOT = Path(odp.__file__).parent.parent
PACKAGES = ("odp", "trusted_aggregator", "distributor", "server", "device_runtime", "benchmarks", "examples", "tools")

#: Of other libraries, and of dp-accounting: their accountants, and the events that nothing here may be charged as.
FORBIDDEN = {
    "opacus", "autodp", "prv_accountant", "diffprivlib", "compute_dp_sgd_privacy",
    "SampledWithoutReplacementDpEvent", "SampledWithReplacementDpEvent", "SingleEpochTreeAggregationDpEvent",
    "RepeatAndSelectDpEvent", "ZCDpEvent", "NoOpDpEvent", "UnsupportedDpEvent", "NonPrivateDpEvent",
    "REPLACE_SPECIAL", "compute_eps_poisson", "compute_mu_poisson", "compute_mu_uniform", "compute_eps_uniform",
    "GDPAccountant", "PRVAccountant", "MomentsAccountant",
}  # fmt: skip
#: The one module that may name each of these.
ONLY_IN = {
    # For its sum with noise, in a process of TensorFlow Federated; nothing is accounted for there.
    "tensorflow_privacy": "odp/research/interop/tff/processes.py",
    "RdpAccountant": "odp/privacy/accounting.py",
    "REPLACE_ONE": "odp/privacy/accounting.py",
    "PLDAccountant": "odp/privacy/accounting.py",
    "PoissonSampledDpEvent": "odp/privacy/accounting.py",
    "TruncatedSubsampledGaussianDpEvent": "odp/privacy/accounting.py",
    "from_truncated_subsampled_gaussian_mechanism": "odp/privacy/composition.py",
    "get_epsilon_for_delta": "odp/privacy/composition.py",
}
#: The others are looked at beside one of these alone.
WATCHED = FORBIDDEN | ONLY_IN.keys()


def names(source: str) -> Iterator[str]:
    """Every identifier, attribute, imported name and keyword; comments and documentation do not count."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield from node.name.split(".")
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "").split(".")
        elif isinstance(node, ast.keyword) and node.arg:
            yield f"{node.arg}="


def offences(path: str, source: str) -> set[str]:
    # What nothing here spells, nothing here uses: Python reads letters of other forms as their plain ones.
    spelt = unicodedata.normalize("NFKC", source)
    used = set(names(source)) if any(name in spelt for name in WATCHED) else set()
    found = used & FORBIDDEN
    found |= {name for name, place in ONLY_IN.items() if name in used and path != place}
    if "RdpAccountant" in used and "orders=" in used:
        found.add("orders=")  # a short list of Renyi orders: too large an epsilon, or a dropped one
    return found


def product_files() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if "/v1/" not in str(path)]


def test_no_refused_accountant_or_event_is_used_anywhere():
    assert len(product_files()) > 100
    for path in product_files():
        relative = path.relative_to(ROOT).as_posix()
        assert not offences(relative, path.read_text(encoding="utf-8")), relative


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("odp/x.py", "from opacus.accountants import RDPAccountant"),
        ("odp/x.py", "import dp_accounting\ndp_accounting.SampledWithoutReplacementDpEvent(10, 1, e)"),
        ("odp/research/simulation/x.py", "from dp_accounting.rdp import RdpAccountant"),
        ("odp/privacy/accounting.py", "RdpAccountant(orders=[2, 4, 8])"),
        ("odp/privacy/ledger.py", "accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)"),
        ("server/x.py", "from tensorflow_privacy.privacy.analysis import compute_mu_poisson"),
    ],
)
def test_the_scan_notices_each_of_them(path, source):
    assert offences(path, source)


def test_the_accountants_answer_is_far_above_what_a_central_limit_theorem_says():
    """The last column of the golden table, by its own formula, for rounds where it matters."""
    import math

    from odp.privacy.accounting import epsilon, epsilon_of_mu
    from odp.privacy.events import GaussianRelease, SampledRound, Sampling

    q, sigma, rounds, delta = 0.1, 1.0, 10, 1e-6
    clt = epsilon_of_mu(q * math.sqrt(rounds * (math.exp(1 / sigma**2) - 1)), delta=delta)
    assert clt == pytest.approx(1.83571, abs=1e-4)
    event = SampledRound((GaussianRelease("x", 1.0, sigma, 1),), Sampling(q, 10_000, 10_000))
    assert epsilon({event: rounds}, delta=delta) > 1.85 * clt
