"""Installs ODP without extras, and with each extra alone, into clean environments, and checks what an extra promises.

``python tools/check_extras.py [EXTRA ..]``. Needs a package index; exits with 1 where a check fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_SECONDS = 1800.0

#: What works with the extra. That errors without one name it is tested in tests/_system/test_extras.py.
PROMISES = {
    "data": (
        "import odp, pathlib; pathlib.Path('a.csv').write_text('user,item\\n1,2\\n'); print(odp.load('a.csv').n_users)"
    ),
    "device": ("import nh3, psutil; print(nh3.clean('<b>x</b>'), psutil.cpu_count() > 0)"),
    "keyring": "import keyring; print(keyring.get_keyring().priority >= 0)",
    "fast": "import odp.numerics.tiles, threadpoolctl; print('compiled')",
    "litert": "import odp.models.litert.runner; from ai_edge_litert.interpreter import Interpreter; print('ran')",
    "keras": "import tensorflow, ai_edge_litert, odp; print(odp.KerasModel.__name__)",
    "onnx": "import onnx; print(onnx.__version__)",
    "postgres": "import psycopg; print(psycopg.pq.version() > 0)",
    "ray": "import ray, odp.numerics.tiles; print(ray.__version__)",
    "s3": "import boto3; print(boto3.__version__)",
    "traces": "import opentelemetry.sdk.trace; print('traces')",
    "dashboard": "import starlette, uvicorn; print(uvicorn.__version__)",
    "docs": "import mkdocs, material, mkdocstrings; print('site')",
}
_CORE = "import odp; print(odp.data.synthetic_movielens(n_users=20, n_items=10, ratings_per_user=6, seed=1).n_users)"


def main(arguments: list[str] | None = None) -> int:
    """Checks the extras that the command line names, or all of them; returns the exit code."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    public = sorted(set(extras) - {"dev", "bench"})
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extra", nargs="*", help=f"of {', '.join(public)} [default: all]")
    chosen = parser.parse_args(arguments).extra or public
    unknown = sorted(set(chosen) - set(public))
    if unknown:
        parser.error(f"no extra {', '.join(unknown)}; there are {', '.join(public)}")
    missing = sorted(set(public) - set(PROMISES))
    if missing:
        print(f"no check of the extra {', '.join(missing)}: add one to PROMISES")
        return 1
    failed = []
    for extra in ["", *chosen]:
        name = extra or "no extra"
        print(f"{name}: installing", flush=True)
        with tempfile.TemporaryDirectory(prefix="odp-extra-") as folder:
            problem = check(Path(folder), extra)
        print(f"{name}: {problem or 'works'}", flush=True)
        failed += [name] if problem else []
    print(f"failed: {', '.join(failed)}" if failed else "every extra does what it promises")
    return int(bool(failed))


def check(folder: Path, extra: str) -> str:
    """Installs into ``folder`` and runs the promise; returns what is wrong, or an empty text."""
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python")
    target = f"{ROOT}[{extra}]" if extra else str(ROOT)
    installed = run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", target], folder)
    if installed.returncode:
        return f"cannot be installed: {last_line(installed)}"
    ran = run([python, "-P", "-c", PROMISES.get(extra, _CORE)], folder)
    if ran.returncode:
        return f"does not work: {last_line(ran)}"
    if extra:
        return ""
    without = run([python, "-P", "-c", PROMISES["data"]], folder)
    if "odp-platform[data]" in without.stderr:
        return ""
    return f"the error without pyarrow names no extra: {last_line(without)}"


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in ``folder``."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The end of what a command said."""
    return (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
