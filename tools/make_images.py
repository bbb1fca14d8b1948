"""Makes the pictures of `docs/images` again: `make images`, or `python tools/make_images.py NAME ..`.

Seeds and sizes are fixed; dates, addresses and ports are those of the run. Only if they are named are those made that
need MovieLens or Gowalla in the cache (`odp data fetch`), or many minutes of trainings or benchmarks. Nothing makes
dpam-buckets.png; `python -m benchmarks.panel report --picture` makes panel.png from scores of hours.
The drawings (.svg) are drawn by hand.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

from screenshots import Camera

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
_SECONDS = 1800.0
_TERMINAL = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>terminal</title><style>body{{margin:0;padding:20px 24px;"
    "background:#16191d;color:#e6e6e6}}pre{{font:15px/1.35 'DejaVu Sans Mono',monospace;margin:0;"
    "white-space:pre-wrap}}</style><pre>{}</pre>"
)


def odp(*arguments: str, folder: Path) -> str:
    """Runs a command in ``folder``; returns what it printed."""
    return ran(["-P", "-m", "odp", *arguments], folder=folder)


def ran(arguments: list[str], *, folder: Path) -> str:
    """Runs Python in ``folder`` at 100 columns. Raises SystemExit with its last line where it fails."""
    environment = os.environ | {"COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {(done.stderr.strip() or 'no output').splitlines()[-1]}")
    return done.stdout


def the_demo(work: Path) -> Path:
    """The folder of one run of `odp demo`, with the state of its programs."""
    folder = work / "demo"
    if not folder.is_dir():
        folder.mkdir()
        printed = odp("demo", "--output", "out", "--state", "state", folder=folder)
        (folder / "printed.txt").write_text(printed, encoding="utf-8")
    return folder


def demo(work: Path, camera: Camera) -> None:
    """demo.png: the picture that `odp demo` leaves."""
    shutil.copy(the_demo(work) / "out" / "rmse-and-epsilon.png", IMAGES / "demo.png")


def demo_terminal(work: Path, camera: Camera) -> None:
    """demo-terminal.png: what `odp demo` prints on stdout."""
    page = work / "terminal.html"
    text = (the_demo(work) / "printed.txt").read_text(encoding="utf-8")
    shown = "$ odp demo\n" + text[: text.index("every charge:")].strip()
    page.write_text(_TERMINAL.format(html.escape(shown)), encoding="utf-8")
    camera.take(page.as_uri(), IMAGES / "demo-terminal.png", width=960)


def report(work: Path, camera: Camera) -> None:
    """report.png: the page of a simulation."""
    odp("simulate", "--data", "synthetic", "--output", "run", "--report", "report.html", folder=work)
    camera.take((work / "report.html").as_uri(), IMAGES / "report.png", width=1100, height=1250)


def comparison(work: Path, camera: Camera) -> None:
    """comparison.png: the page of `odp.compare`."""
    code = "import odp; odp.compare('synthetic', epsilons=(1, 2, 4, 8), seeds=2).report('comparison.html')"
    ran(["-P", "-c", code], folder=work)
    camera.take((work / "comparison.html").as_uri(), IMAGES / "comparison.png", width=1100)


def data_check(work: Path, camera: Camera) -> None:
    """data-check.png: the picture of `odp data check`."""
    odp("data", "check", "synthetic:n_users=3000,seed=3", "--output", "check", folder=work)
    camera.take((work / "check" / "check.svg").as_uri(), IMAGES / "data-check.png", width=960, height=400)


def device_privacy(work: Path, camera: Camera) -> None:
    """device-privacy.png: the page of a person whose device took part in the demo."""
    state = the_demo(work) / "state" / "devices"
    command = [sys.executable, "-P", "-u", "-m", "odp", "device", "view", "--state", str(state), "--device", "7"]
    photograph(command, camera, IMAGES / "device-privacy.png", link=r"http://\S+")


def device_mix(work: Path, camera: Camera) -> None:
    """device-mix.png: the mix that the music player of the examples renders."""
    command = [sys.executable, "-u", str(ROOT / "examples" / "music_player.py")]
    photograph(command, camera, IMAGES / "device-mix.png", link=r"your mix:\s+(http://\S+)")


def photograph(command: list[str], camera: Camera, file: Path, *, link: str) -> None:
    """Takes a picture of the page that a program prints and serves, then ends the program."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        try:
            for line in running.stdout:
                found = re.search(link, line)
                if found is not None:
                    camera.take(found[found.lastindex or 0], file, width=900, height=1000)
                    return
            raise SystemExit(f"{' '.join(command)} printed no address")
        finally:
            running.terminate()


_CONTROL_ROOM_TASK = """name = "{name}"
[model]
kind = "matrix_factorization"
items = 60
rank = {rank}
[data]
low = 1.0
high = 5.0
[privacy]
epsilon = {epsilon}
delta = 1e-5
[training]
kind = "dpam"
steps = {steps}
[cohort]
minimum = 100
goal = {goal}
"""


def control_room(work: Path, camera: Camera) -> None:
    """control-room.png and control-room-task.png: tasks of `odp up`, some of them finished, one short of devices."""
    folder = work / "rooms"
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    begin = [sys.executable, "-P", "-u", "-m", "odp"]
    keep = {"cwd": folder, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([*begin, "up"], **keep) as services:  # type: ignore[call-overload]
        try:
            _line(services, "ready at")
            ids = {}
            for name, epsilon, rank, steps, goal, users in (
                ("films-small", 4.0, 2, 0, 180, 200), ("films", 8.0, 3, 4, 190, 200), ("albums", 6.0, 3, 6, 240, 130),
            ):  # fmt: skip
                text = _CONTROL_ROOM_TASK.format(name=name, epsilon=epsilon, rank=rank, steps=steps, goal=goal)
                (folder / f"{name}.toml").write_text(text, encoding="utf-8")
                ids[name] = odp("task", "submit", f"{name}.toml", folder=folder).strip()
                data = f"synthetic:n_users={users},n_items=60,ratings_per_user=20"
                end = ["--for", "12"] if users < goal else ["--until-finished", "--for", "120"]
                subprocess.run(
                    [*begin, "device", "run", "--population", name, "--state", f"devices-{name}", "--services",
                     "odp-state", "--data", data, "--max-epsilon", "20", "--max-total-epsilon", "20", *end],
                    cwd=folder, env=environment, capture_output=True, timeout=_SECONDS, check=False,
                )  # fmt: skip
            with subprocess.Popen([*begin, "dashboard"], **keep) as room:  # type: ignore[call-overload]
                try:
                    url = _line(room, r"http://\S+")
                    with urllib.request.urlopen(url) as signed_in:
                        folder_of_pages = str(signed_in.headers["set-cookie"]).partition("Path=")[2].partition(";")[0]
                    origin = url.partition("/?")[0] + folder_of_pages
                    for address in (url, f"{origin}/tasks/{ids['films']}"):  # signs in, and has plans computed
                        camera.take(address, work / "unused.png", width=1100)
                    camera.take(f"{origin}/", IMAGES / "control-room.png", width=1100)
                    camera.take(f"{origin}/tasks/{ids['films']}", IMAGES / "control-room-task.png", width=1100)
                finally:
                    room.terminate()
        finally:
            services.terminate()


def _line(running: subprocess.Popen[str], wanted: str) -> str:
    """The first text that a program prints and ``wanted`` matches."""
    assert running.stdout is not None
    for line in running.stdout:
        found = re.search(wanted, line)
        if found is not None:
            return found[0]
    raise SystemExit(f"no {wanted!r} was printed")


def docs_home(work: Path, camera: Camera) -> None:
    """docs-home.png: the home of the docs site, which `make docs` has built."""
    home = ROOT / "site" / "index.html"
    if not home.is_file():
        raise SystemExit("there is no site/: run `make docs` first")
    camera.take(home.as_uri(), IMAGES / "docs-home.png", width=1280, height=860)


def local_errors(work: Path, camera: Camera) -> None:
    """local-errors.png: errors of local mechanisms, by `odp reproduce local`."""
    odp("reproduce", "local", "--output", "local", folder=work)
    shutil.copy(work / "local" / "local-1.png", IMAGES / "local-errors.png")


def dpam_comparison(work: Path, camera: Camera) -> None:
    """dpam-comparison.png: every method on MovieLens-1M."""
    compared(work, "ml-1m", IMAGES / "dpam-comparison.png", "--preset", "ml-1m", "--permutation")


def implicit_comparison(work: Path, camera: Camera) -> None:
    """implicit-comparison.png: every method on Gowalla."""
    compared(work, "gowalla", IMAGES / "implicit-comparison.png")


def compared(work: Path, data: str, file: Path, *options: str) -> None:
    """Copies the picture of `odp compare`."""
    odp("compare", "--data", data, "--epsilons", "1,2,4,8,20,inf", *options, "--output", data, folder=work)
    shutil.copy(work / data / "comparison.png", file)


def broadcast_cost(work: Path, camera: Camera) -> None:
    """broadcast-cost.png: what ways of broadcast cost, by the benchmark of the distributor."""
    figures = work / "figures.json"
    ran(["-m", "benchmarks", "distributor", "--json", str(figures)], folder=ROOT)
    json.loads(figures.read_text(encoding="utf-8"))
    ran(["-m", "benchmarks.broadcast_figure", str(figures), str(IMAGES / "broadcast-cost.png")], folder=ROOT)


def serving(work: Path, camera: Camera) -> None:
    """serving.png: what recommendations out of an index cost, by the benchmark of serving."""
    figures = work / "serving.json"
    ran(["-m", "benchmarks", "serving", "--json", str(figures)], folder=ROOT)
    ran(["-m", "benchmarks.serving_figure", str(figures), str(IMAGES / "serving.png")], folder=ROOT)


def exposure(work: Path, camera: Camera) -> None:
    """exposure.png: what a model of MovieLens-1M recommends, and who gains."""
    from odp.pictures import charts, style
    from odp.research.simulation import report
    from odp.research.simulation.record import read_record
    from odp.research.simulation.verdict import quality_of

    odp("simulate", "--data", "ml-1m", "--preset", "ml-1m", "--seed", "1", "--output", "exposure", folder=work)
    record = read_record(work / "exposure")
    users, items, metric = report._both(record["diagnostics"], quality_of(record))
    figure, (above, *below) = style.figure(3, width=8.6, height=8.6, height_ratios=(5, 3, 3))
    charts._shares(above, report._shares(record["diagnostics"]["exposure"]), narrow=False)
    for panel, group in zip(below, (users, items), strict=True):
        charts._gains(panel, group, metric)
    # One scale, so that users and items can be compared.
    low, high = zip(*(panel.get_ylim() for panel in below), strict=True)
    for panel in below:
        panel.set_ylim(min(low), max(high))
    charts._note(figure, narrow=False)
    style.save(figure, IMAGES / "exposure.png", title="exposure by popularity, and gains by group, on MovieLens-1M")


def continual(work: Path, camera: Camera) -> None:
    """continual.png: errors of drifting statistics by rule of the budget."""
    ran(["-m", "benchmarks.continual", str(IMAGES / "continual.png")], folder=ROOT)


def retraining(work: Path, camera: Camera) -> None:
    """retraining.png: 105 weekly trainings on invented ratings that drift."""
    odp("retrain", "--horizon", "2y", "--output", "retraining", folder=work)
    shutil.copy(work / "retraining" / "retraining.png", IMAGES / "retraining.png")


def retraining_by_month(work: Path, camera: Camera) -> None:
    """retraining-by-month.png: MovieLens-1M in the order of its time stamps, mean of three seeds; an hour."""
    from odp.pictures.charts import draw_retraining

    ways: dict[str, list[list[float]]] = {"from the release before": [], "from nothing each time": []}
    last: dict[str, list[float]] = {}
    for seed in ("1", "2", "3"):
        options = ("--by-month", "--every", "30d", "--horizon", "360d", "--seed", seed, "--json")
        found = json.loads(odp("retrain", "ml-1m", *options, folder=work).splitlines()[-1])
        for name, key in zip(ways, ("trainings", "from_nothing"), strict=True):
            ways[name].append([training["test_rmse"] for training in found[key]])
        last = {name: [one[name] for one in found["trainings"]] for name in ("epsilon_so_far", "user_mean_rmse")}
    draw_retraining(
        IMAGES / "retraining-by-month.png",
        {name: [sum(month) / len(month) for month in zip(*runs, strict=True)] for name, runs in ways.items()},
        epsilon=last["epsilon_so_far"], budget=20.0, reference=last["user_mean_rmse"],
        title="test error and ε over the months of MovieLens-1M",
    )  # fmt: skip


USUAL: tuple[Callable[[Path, Camera], None], ...] = (
    demo, demo_terminal, report, comparison, data_check, device_privacy, device_mix, docs_home, local_errors,
    control_room,
)  # fmt: skip
NAMED: tuple[Callable[[Path, Camera], None], ...] = (
    dpam_comparison, implicit_comparison, broadcast_cost, serving, exposure, continual, retraining,
    retraining_by_month,
)  # fmt: skip


def main() -> None:
    """Makes the usual pictures, or those that are named."""
    makers = {maker.__name__.replace("_", "-"): maker for maker in (*USUAL, *NAMED)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help=f"of {', '.join(makers)} [default: the usual ones]")
    names = parser.parse_args().name or [maker.__name__.replace("_", "-") for maker in USUAL]
    unknown = sorted(set(names) - set(makers))
    if unknown:
        parser.error(f"no picture {', '.join(unknown)}; there are {', '.join(makers)}")
    with tempfile.TemporaryDirectory(prefix="odp-images-") as work, Camera() as camera:
        for name in names:
            print(f"{name}.png", flush=True)
            makers[name](Path(work), camera)


if __name__ == "__main__":
    main()
