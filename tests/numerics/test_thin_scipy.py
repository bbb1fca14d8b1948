"""The thin SciPy of an enclave: the bits of the whole library, and a whole library for everybody else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from odp.errors import StateError
from odp.numerics import thin_scipy

VALUES = Path(__file__).with_name("scipy_values.py")
#: Of 530: its packages, and the compiled extensions with what these import.
FEW_MODULES = 20


def run(*arguments: str) -> str:
    """What a new interpreter prints."""
    program = [sys.executable, *arguments]
    return subprocess.run(program, capture_output=True, text=True, timeout=300, check=True).stdout


@pytest.mark.slow
def test_accounting_sums_and_functions_have_the_bits_of_the_whole_library() -> None:
    thin, whole = (json.loads(run(str(VALUES), kind)) for kind in ("thin", "whole"))
    assert thin["modules"] <= FEW_MODULES < 500 < whole["modules"]
    assert len(whole["values"]) > 200
    assert sum("epsilon" in name or "sampled" in name or "capped" in name for name in whole["values"]) > 71
    assert thin["values"] == whole["values"]


def test_a_process_that_has_loaded_scipy_keeps_the_whole_library() -> None:
    import scipy.stats

    before = {name: module for name, module in sys.modules.items() if name.startswith("scipy")}
    with pytest.raises(StateError, match="scipy is loaded already"):
        thin_scipy.install()
    assert {name: module for name, module in sys.modules.items() if name.startswith("scipy")} == before
    assert scipy.stats.laplace.cdf(0.0) == 0.5


@pytest.mark.slow
def test_accounting_outside_of_an_enclave_leaves_scipy_whole() -> None:
    code = (
        "from odp.privacy import accounting; from odp.privacy.events import GaussianRelease\n"
        "import odp.numerics.thin_scipy, trusted_aggregator.enclave.process, distributor.enclave_process\n"
        "accounting.epsilon_pld([GaussianRelease('x', 1.0, 1.0, 1)], delta=1e-5, interval=1e-3)\n"
        "import scipy.stats, scipy.optimize, scipy.linalg\n"
        "print(scipy.__version__, scipy.stats.laplace.cdf(0.0), scipy.optimize.brentq(lambda x: x, -1, 1))"
    )
    version, half, root = run("-c", code).split()
    assert version[0].isdigit()
    assert (float(half), float(root)) == (0.5, 0.0)


#: Statements, and a part of what each raises in an enclave.
REFUSED = [
    ("import scipy.linalg", "No module named 'scipy.linalg'"),
    ("from scipy import linalg", "cannot import name 'linalg'"),
    ("import scipy.optimize as o; o.brentq", "scipy.optimize.brentq is no part of SciPy that an enclave loads"),
    ("from scipy.stats import laplace", "cannot import name 'laplace'"),
    ("from scipy.special import softmax", "cannot import name 'softmax'"),
    ("from scipy import signal; signal.fftconvolve([[1.0]], [1.0])", "Expected one axis with at least one value"),
    ("from scipy import signal; signal.fftconvolve([1.0], [2.0], mode='same')", "unexpected keyword"),
    ("from scipy import special; special.logsumexp([])", "Expected at least one exponent"),
    ("from scipy import stats; stats.norm(scale=-1.0)", "Expected scale=-1.0"),
    (
        "from scipy import sparse; sparse.csr_array((np.ones(1), (np.ones(1, int), [1])), shape=(1, 2))",
        "Expected rows and columns within shape",
    ),
    (
        "from scipy import sparse; sparse.csr_array((np.ones(1), (np.zeros(1, int), [2])), shape=(1, 2))",
        "Expected rows and columns within shape",
    ),
    (
        "from scipy import sparse\n"
        "sparse.csr_array((np.ones(1), (np.zeros(1, int), [1])), shape=(1, 2)) @ np.ones((3, 1))",
        "Expected 2 dense rows",
    ),
    ("thin_scipy.install()", "scipy is loaded already"),
]


@pytest.fixture(scope="module")
def refusals() -> dict[str, str]:
    """What each statement of ``REFUSED`` raises where the thin library is installed."""
    code = (
        "import json, sys; import numpy as np\n"
        "from odp.numerics import thin_scipy; thin_scipy.install()\n"
        "raised = {}\n"
        "for statement in json.loads(sys.argv[1]):\n"
        "  try:\n    exec(statement, {'np': np, 'thin_scipy': thin_scipy})\n"
        "  except Exception as error:\n    raised[statement] = str(error)\n"
        "print(json.dumps(raised))"
    )
    raised: dict[str, str] = json.loads(run("-c", code, json.dumps([statement for statement, _ in REFUSED])))
    return raised


@pytest.mark.parametrize(("statement", "error"), REFUSED)
def test_what_an_enclave_has_no_use_for_is_refused(refusals: dict[str, str], statement: str, error: str) -> None:
    assert error in refusals[statement]


def test_a_scipy_without_these_extensions_is_refused_by_name_and_leaves_nothing_behind(tmp_path: Path) -> None:
    special = tmp_path / "scipy" / "special"
    special.mkdir(parents=True)
    (tmp_path / "scipy" / "__init__.py").write_text("raise RuntimeError('the library itself')")
    (special / "_ufuncs.py").write_text("")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from odp.errors import ConfigurationError; from odp.numerics import thin_scipy\n"
        "try:\n  thin_scipy.install()\nexcept ConfigurationError as error:\n"
        "  print(error, [name for name in sys.modules if name.startswith('scipy')])"
    )
    refusal = run("-c", code)
    assert refusal.startswith("The installed SciPy has other extensions than an enclave calls")
    assert refusal.rstrip().endswith("install scipy>=1.15,<1.18 []")
