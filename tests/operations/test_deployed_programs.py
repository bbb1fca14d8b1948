"""The command lines inside ``deploy/``, each run as it stands: the programs serve, are ready, and know each other.

What runs: every command line of the units, the compose file and the manifests, with their one-time steps, on the
settings that docs/deployment.md shows; with folders of this test in the place of /var/lib/odp and /etc/odp, 127.0.0.1
in the place of other names, and ports that are 10,000 higher.

What nothing here runs: systemd, a container runtime, a cluster, the image, and what only these enforce, which is users,
volumes, network policies and memory limits. ``test_deploy.py`` checks the form of those.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Template

import pytest
import yaml
from conformance.postgresql import PostgresqlServer
from documentation.code_blocks import ROOT, blocks_of
from documentation.running import ENVIRONMENT, run, run_page

pytestmark = [pytest.mark.processes, pytest.mark.proof]

DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs" / "deployment.md"
DEPLOY_PAGE = ROOT / "docs" / "how-to" / "deploy.md"
SECONDS = 120.0
ROLES = ("distributor", "aggregator", "issuer", "server")


@dataclasses.dataclass(frozen=True)
class Program:
    """A command line of ``deploy/`` and what it finds in its environment."""

    role: str
    command: Sequence[str]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with certificates as the page of deployments makes them."""
    monkeypatch.chdir(tmp_path)
    for name in ("films.toml", "certificates.sh"):
        (block,) = [block for block in blocks_of(DEPLOY_PAGE) if block.note == f"file: {name}"]
        Path(name).write_text(block.text, encoding="utf-8")
    run("bash certificates.sh server distributor aggregator issuer")
    run("cp ca/ca.pem ca.pem")
    return tmp_path


@pytest.fixture
def here(folder: Path) -> Callable[[str], str]:
    """A text of a deployment, for programs that are all below this folder and at 127.0.0.1."""

    def localized(text: str) -> str:
        text = text.replace("/opt/odp/bin/odp", "odp").replace("/etc/odp", str(folder))
        text = text.replace("/var/lib/odp", str(folder / "state"))
        return re.sub(r"(?:0\.0\.0\.0|127\.0\.0\.1|[a-z]+\.example|[a-z]+\.odp\.svc):(\d{4})", r"127.0.0.1:1\1", text)

    (folder / "state").mkdir(mode=0o700)
    return localized


@pytest.fixture
def database() -> Iterator[str]:
    with PostgresqlServer.started() as server:
        yield server.url()


def test_r403_the_command_lines_of_the_units_serve_together(folder: Path, here: Callable[[str], str]) -> None:
    run(
        here(
            "odp server key --state /var/lib/odp/server > server-key.txt;"
            "odp server log-key --state /var/lib/odp/server > log-key.txt;"
            "odp issuer key --state /var/lib/odp/issuer > issuer-key.txt;"
            "odp device roster devices.txt --state devices --devices 2"
        )
    )
    _write_policy()
    _write_reference_values(here, "distributor.example:7201", "aggregator.example:7202", "issuer.example:7220")
    programs = []
    for role in ROLES:
        (settings,) = [block.text for block in blocks_of(PAGE) if block.note == f"file: {role}.env"]
        for placeholder, file in (("=SERVER_KEY", "server-key.txt"), ("=ISSUER_KEY", "issuer-key.txt")):
            settings = settings.replace(placeholder, f"={Path(file).read_text().strip()}")
        values = dict(line.split("=", 1) for line in here(settings).splitlines())
        unit = (DEPLOY / "systemd" / f"odp-{role}.service").read_text(encoding="utf-8")
        (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
        words = [Template(word).substitute(values) for word in shlex.split(here(line))]
        variables = re.findall(r"^Environment=(\w+)=(.*)$", unit, re.MULTILINE)
        programs.append(Program(role, words, dict(variables)))
    with _served(programs):
        assert "failure" not in _doctor()


def test_r403_the_command_lines_of_the_compose_file_train_a_task(
    folder: Path, here: Callable[[str], str], database: str
) -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    (script,) = services["setup"]["command"]
    for _ in range(2):  # with each `up`
        run(here(script.replace("$$", "$")))
    programs = [
        Program(role, ["odp", *(here(word) for word in services[role]["command"])])
        for role in ("distributor", "aggregator")
    ]
    command = ["odp", *(here(word) for word in services["server"]["command"])]
    programs.append(Program("server", command, {"ODP_DATABASE": database}))
    with _served(programs):
        for role in ("distributor", "aggregator", "server"):
            kind, *test = services[role]["healthcheck"]["test"]
            assert kind == "CMD"
            run(shlex.join(here(word) for word in test))
        at = "--server 127.0.0.1:17200"
        run(f"odp task submit films.toml --state state {at}")
        run(
            f"odp device run --population films --services state {at} --until-finished "
            "--data synthetic:n_users=120,n_items=20,ratings_per_user=5"
        )
        printed = run("odp audit verify --address 127.0.0.1:17200 --services state")
        assert "audit passed" in printed


def test_r403_the_command_lines_of_the_manifests_serve_together(
    folder: Path, here: Callable[[str], str], database: str
) -> None:
    run_page(PAGE)
    _write_reference_values(here, "distributor.odp.svc:7201", "aggregator.odp.svc:7202")
    run("mkdir secret; cp keys/{developer.key,log.key,operator.token} secret; chmod 440 secret/*")
    programs = []
    for role in ("distributor", "aggregator", "server"):
        (workload,) = yaml.safe_load_all((DEPLOY / "kubernetes" / f"{role}.yaml").read_text(encoding="utf-8"))
        pod = workload["spec"]["template"]["spec"]
        (container,) = pod["containers"]

        def in_pod(text: str, role: str = role) -> str:
            """With each file where its volume has it."""
            for inside, outside in (("policy", ""), ("accepted", ""), ("keys", "secret/")):
                text = text.replace(f"/etc/odp/{inside}/", f"{folder}/{outside}")
            for inside, outside in (("tls.crt", f"{role}.pem"), ("tls.key", f"{role}.key"), ("ca.crt", "ca.pem")):
                text = text.replace(f"/etc/odp/tls/{inside}", str(folder / outside))
            return here(text)

        for step in pod.get("initContainers", []):
            for _ in range(2):  # with each start of the pod
                run(shlex.join(in_pod(word) for word in step["command"]))
        environment = {one["name"]: one.get("value", database) for one in container["env"]}
        programs.append(Program(role, ["odp", *map(in_pod, container["args"])], environment))
    with _served(programs):
        assert "failure" not in _doctor()
        run("mkdir -m 700 server; cp keys/operator.token server")
        run("odp task list --server 127.0.0.1:17200 --state .")


def _write_policy() -> None:
    run(
        "odp enclave endorser-key --key endorser.key > endorser-key.txt;"
        'odp enclave upgrade-policy --log-key "$(cat log-key.txt)" --endorser-key "$(cat endorser-key.txt)"'
    )


def _write_reference_values(here: Callable[[str], str], distributor: str, aggregator: str, issuer: str = "") -> None:
    """What devices accept, of chips in the state folders, under the keys that are in the working folder."""
    founders = "server-key.txt" if Path("server-key.txt").exists() else "founders.txt"
    policy = f"--founder {founders} --upgrade upgrade.json"
    for role in ("distributor", "aggregator"):
        run(here(f"odp enclave root --platform /var/lib/odp/{role}/platform > {role}-root.pem"))
    run(
        here(
            f"odp enclave reference-values --root distributor-root.pem --root aggregator-root.pem {policy} "
            '--log-key "$(cat log-key.txt)" --endorser-key "$(cat endorser-key.txt)" '
            f"--distributor {distributor} --aggregator {aggregator};"
            f"odp enclave endorse --reference-values reference_values.json {policy} --key endorser.key"
        )
    )
    if issuer:
        run(here(f"odp enclave pin-address issuer {issuer} --reference-values reference_values.json"))


def _doctor() -> str:
    return run("odp doctor --strict --server 127.0.0.1:17200 --ca ca/ca.pem --reference-values reference_values.json")


@contextlib.contextmanager
def _served(programs: Sequence[Program]) -> Iterator[None]:
    """Runs the programs, each from when the one before it is ready by its probe."""
    with contextlib.ExitStack() as stack:
        for program in programs:
            stack.enter_context(_running(program))
        yield


@contextlib.contextmanager
def _running(program: Program) -> Iterator[None]:
    address = program.command[program.command.index("--probes") + 1]
    log = Path(f"{program.role}.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            program.command, env=ENVIRONMENT | dict(program.environment), stdout=output, stderr=output
        )
    try:
        pause = threading.Event()
        for _ in range(int(SECONDS / 0.2)):
            assert process.poll() is None, log.read_text(encoding="utf-8")
            if _ready(f"http://{address}/readyz"):
                break
            pause.wait(0.2)
        else:
            pytest.fail(f"{program.role} was not ready: {log.read_text(encoding='utf-8')}")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, log.read_text(encoding="utf-8")


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
