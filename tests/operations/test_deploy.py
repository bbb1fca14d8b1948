"""The files in ``deploy/``: of valid form, and every command in them has options that there are."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from odp.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
_UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
_MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def require_command(arguments):
    """Fails where `odp` has no such command or option."""
    command, rest = get_command(app), [str(word) for word in arguments]
    while rest and not rest[0].startswith("-"):
        command = command.commands[rest.pop(0)]
    known = {name for parameter in command.params for name in parameter.opts}
    given = {word for word in rest if word.startswith("--")}
    assert given <= known, given - known
    needed = {parameter.opts[0] for parameter in command.params if parameter.required}
    assert not needed - given


def test_a_command_with_an_option_that_is_none_fails():
    with pytest.raises(AssertionError):
        require_command(["server", "run", "--no-such-option", "1"])


@pytest.mark.parametrize("unit", _UNITS, ids=lambda path: path.name)
def test_units_are_valid_and_start_what_there_is(unit, tmp_path):
    text = unit.read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    program, *arguments = shlex.split(line)
    assert program.endswith("/odp")
    require_command(arguments)
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / unit.name
    copy.write_text(text.replace(program, shutil.which("true") or "/bin/true"))
    done = subprocess.run([verify, "verify", str(copy)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip(), done.stderr


def _documents(path):
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


@pytest.mark.parametrize("manifest", _MANIFESTS, ids=lambda path: path.name)
def test_manifests_hold_their_schemas(manifest):
    validate = pytest.importorskip("kubernetes_validate")
    documents = _documents(manifest)
    assert documents
    for document in documents:
        validate.validate(document, "1.37", strict=True)
        with pytest.raises(validate.ValidationError):
            validate.validate({**document, "nothing": 1}, "1.37", strict=True)


def test_workloads_have_probes_limits_and_commands_that_there_are():
    workloads = [one for path in _MANIFESTS for one in _documents(path) if one["kind"] in ("Deployment", "StatefulSet")]
    assert {one["metadata"]["name"] for one in workloads} == {"server", "distributor", "aggregator"}
    for one in workloads:
        pod = one["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        require_command(container["args"])
        assert {"readinessProbe", "livenessProbe", "startupProbe"} <= container.keys()
        assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
        assert pod["securityContext"]["runAsNonRoot"]
        names = {volume["name"] for volume in pod["volumes"]} | {
            claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])
        }
        mounted = {
            mount["name"] for each in [container, *pod.get("initContainers", [])] for mount in each["volumeMounts"]
        }
        assert mounted <= names


def _started():
    """Each program of each kind of deployment: its command line, its memory limit in bytes, and its probes' address."""
    for unit in _UNITS:
        text = unit.read_text()
        (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
        (limit,) = re.findall(r"^MemoryMax=(\d+)G$", text, re.MULTILINE)
        assert re.search(r"^MemorySwapMax=0$", text, re.MULTILINE)
        words = shlex.split(line)[1:]
        yield unit.name, words, int(limit) << 30, words[words.index("--probes") + 1]
    for name, service in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].items():
        if name not in ("database", "setup"):
            assert service["memswap_limit"] == service["mem_limit"]
            (probed,) = re.findall(r"http://([^/]+)/readyz", service["healthcheck"]["test"][-1])
            yield f"compose {name}", service["command"], int(service["mem_limit"].removesuffix("g")) << 30, probed
    for path in _MANIFESTS:
        for one in _documents(path):
            if one["kind"] == "StatefulSet":
                (container,) = one["spec"]["template"]["spec"]["containers"]
                ports = {port["name"]: port["containerPort"] for port in container["ports"]}
                for probe, place in (("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
                    assert container[probe]["httpGet"] == {"path": place, "port": "probes"}
                limit = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) << 30
                yield path.name, container["args"], limit, f"0.0.0.0:{ports['probes']}"


def test_r403_every_program_of_a_deployment_has_probes_a_memory_limit_and_a_way_to_new_code():
    """A liveness probe at the port of metrics restarts a program whose metrics somebody holds up."""
    started = list(_started())
    assert len(started) == 4 + 3 + 3
    for name, words, limit, probed in started:
        options = dict(itertools.pairwise(words))
        assert options["--probes"] == probed != options["--metrics"], name
        assert 1 << 30 <= limit <= 8 << 30, name
        assert words[0] != "aggregator" or "--upgrade" in options, f"{name} could never hand its ledgers to new code"
        assert words[0] != "server" or {"--reference-values", "--endorsements"} <= options.keys(), name


def test_nothing_is_reachable_but_what_a_policy_names_and_control_listeners_are_the_servers():
    policies = {one["metadata"]["name"]: one["spec"] for one in _documents(DEPLOY / "kubernetes/network-policies.yaml")}
    assert policies["nothing"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for role, control in (("distributor", 7211), ("aggregator", 7212)):
        rules = policies[role]["ingress"]
        (admitted,) = [rule for rule in rules if {"protocol": "TCP", "port": control} in rule["ports"]]
        assert admitted["from"] == [{"podSelector": {"matchLabels": {"app.kubernetes.io/component": "server"}}}]
        assert "Egress" not in policies[role]["policyTypes"], "it calls nobody: the policy `nothing` holds"


def test_the_compose_file_starts_what_there_is_on_loopback():
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for name, service in found["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        if name == "database":
            # Certificates of a development CA name no other address than 127.0.0.1.
            assert {port.rpartition(":")[2] for port in service["ports"]} == {"7200", "7201", "7202"}
            continue
        assert service["network_mode"] == "service:database"
        if name == "setup":
            (script,) = service["command"]
            commands = re.findall(r"\bodp ([^>)\n]+)", script.replace("\\\n", " "))
            assert len(commands) == 6
            for command in commands:
                require_command(shlex.split(command))
            continue
        require_command(service["command"])
        assert {volume.partition(":")[0] for volume in service["volumes"]} <= found["volumes"].keys()


def test_the_image_installs_this_project_and_runs_without_root():
    text = (DEPLOY / "Containerfile").read_text()
    extras = re.search(r"'\.\[([a-z0-9,]+)\]'", text)
    assert extras
    assert "[project.optional-dependencies]" in (ROOT / "pyproject.toml").read_text()
    assert f"\n{extras[1]} = " in (ROOT / "pyproject.toml").read_text()
    assert re.search(r"^USER 10001$", text, re.MULTILINE)
    assert 'ENTRYPOINT ["odp"]' in text
