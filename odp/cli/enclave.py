"""`odp enclave`: what devices pin, how it is measured, and what a machine can restrict."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from odp import _validate
from odp.cli.console import print_json, print_result, print_text
from odp.cli.enclave_image import Images, build, show
from odp.cli.helper import pin_helper
from odp.cli.outputs import output_file, writing_file
from odp.cli.services import Upgrade, founder_keys, upgrade_policy
from odp.cli.upgrade import upgrade
from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from odp.trust.enclave.log_policy import LogPolicy
    from odp.trust.enclave.policy import Accumulation, Selection

app = typer.Typer(help="Measure, endorse and withdraw the code of enclaves.", no_args_is_help=True)

_MEANING = {
    "namespace-user": "users of its own: no rights outside",
    "namespace-network": "a network of its own, empty",
    "namespace-ipc": "shared memory and queues of its own",
    "namespace-process": "it sees no other process",
    "no-new-privileges": "no program could give it more rights",
    "not-dumpable": "no process of the same user may read its memory",
    "no-core-dumps": "its memory goes to no file when it crashes",
    "landlock-read-only": "no file can be written, no TCP, from its first instruction on",
    "closed-descriptors": "it inherits two sockets and nothing else",
    "resource-limits": "no file can grow, few descriptors",
    "landlock-no-files": "no file can be opened, from its first instruction on",
    "seccomp": "system calls: compute, threads, its two sockets",
}


@app.command("digest")
def digest(
    images: Images = None, json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Print the measurement of each enclave that this installation runs, and its parts.

    It is the digest of the one image that the enclave runs: `base` is Python, the libraries and those of the system,
    `code` the enclave's own modules. `odp enclave show` lists what is in an image.
    """
    from odp.operations.local.log_setup import measurements

    measured = measurements(images)
    if json_output:
        print_json({role: {"digest": image.digest, "components": image.components} for role, image in measured.items()})
        return
    for role, image in measured.items():
        print_text(f"{role:<13} {image.digest}")
        for name, component in image.components.items():
            print_text(f"  {name:<13} {component}")


@app.command("doctor")
def doctor(
    images: Images = None, json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Launch an empty enclave, and print which restrictions this machine enforces."""
    import tempfile

    from odp.trust.enclave.host import launching
    from odp.trust.enclave.measurement import PROBE_ENTRY
    from odp.trust.enclave.policy import EnclavePolicy
    from odp.trust.enclave.sandbox import RESTRICTIONS

    policy = EnclavePolicy(role="aggregator").to_bytes()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(
            launching(images)(platform_folder=Path(folder) / "platform", entry=PROBE_ENTRY, policy=policy)
        ) as enclave,
    ):
        held = enclave.restrictions
    if json_output:
        print_json({"held": list(held), "refused": [name for name in RESTRICTIONS if name not in held]})
        return
    for name in RESTRICTIONS:
        print_text(f"{'holds' if name in held else 'REFUSED':<8} {name:<19} {_MEANING[name]}")
    if len(held) < len(RESTRICTIONS):
        print_text("Refused by the kernel: a container often forbids namespaces; Landlock needs Linux 5.13.")


@app.command("reference-values")
def reference_values(
    platform: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the emulated hardware: its root certificate is pinned "
            "\\[default: odp-state/platform, without --root]."
        ),
    ] = None,
    root: Annotated[
        list[Path],
        typer.Option(help="PEM file of the root of other hardware (`odp enclave root`) to pin; repeat for more."),
    ] = [],  # noqa: B006
    minimum_cohort: Annotated[int, typer.Option(help="As given to `odp aggregator run`.")] = 100,
    population_epsilon: Annotated[float, typer.Option(help="As given to `odp aggregator run`.")] = 20.0,
    population_delta: Annotated[float, typer.Option(help="As given to `odp aggregator run`.")] = 1e-5,
    accumulation: Annotated[str, typer.Option(help="As given to `odp aggregator run`.")] = "oblivious",
    founder: Annotated[list[str], typer.Option(help="As given to `odp aggregator run`; repeat for more.")] = [],  # noqa: B006
    upgrade: Upgrade = None,
    select: Annotated[str, typer.Option(help="As given to `odp distributor run`.")] = "oblivious",
    log_key: Annotated[
        list[str], typer.Option(help="Verifier key of the transparency log that devices require \\[default: none].")
    ] = [],  # noqa: B006  # typer copies it
    endorser_key: Annotated[
        list[str], typer.Option(help="Public key of an endorser to accept: 64 hex digits; repeat for more.")
    ] = [],  # noqa: B006
    witness_key: Annotated[list[str], typer.Option(help="Verifier key of a witness; repeat for more.")] = [],  # noqa: B006
    quorum: Annotated[
        int | None, typer.Option(help="Number of witnesses that have to cosign \\[default: all of them].")
    ] = None,
    helper_key: Annotated[
        list[str],
        typer.Option(help="Public key of a helper to accept (`odp distributor helper key`); repeat for more."),
    ] = [],  # noqa: B006
    distributor: Annotated[
        list[str], typer.Option(help="host:port at which devices may connect to the distributor; repeat for more.")
    ] = [],  # noqa: B006
    aggregator: Annotated[list[str], typer.Option(help="As --distributor, for the aggregator.")] = [],  # noqa: B006
    keep: Annotated[
        Path | None,
        typer.Option(help="JSON file of reference values whose enclaves and addresses stay accepted: for an upgrade."),
    ] = None,
    images: Images = None,
    output: Annotated[Path, typer.Option(callback=output_file, help="JSON file to write.")] = Path(
        "reference_values.json"
    ),
) -> None:
    """Write the reference values of the enclaves that this installation runs: root, image digests, policies.

    The command computes digests and policies from the installed code and the options, without a running service.
    """
    from odp.operations.local.log_setup import accepting_both, reference_values as values_of
    from odp.transport.tls import read_ca
    from odp.trust.enclave.policy import EnclavePolicy
    from odp.trust.enclave.reference_values import ReferenceValues

    roots = [read_ca(path).decode("ascii") for path in root]
    if platform is None and not roots:
        platform = Path("odp-state/platform")
    policy = EnclavePolicy(
        role="aggregator",
        minimum_cohort=minimum_cohort,
        population_epsilon=population_epsilon,
        population_delta=population_delta,
        accumulation=cast("Accumulation", accumulation),
        founders=founder_keys(founder),
        upgrade=upgrade_policy(upgrade),
    )
    log = _log_policy(log_key, endorser_key, witness_key, quorum) if log_key else None
    if log is None and (endorser_key or witness_key or quorum is not None):
        raise ConfigurationError("Expected --log-key with --endorser-key, --witness-key and --quorum")
    with writing_file(output):
        values = values_of(
            platform, policy, select=cast("Selection", select), log=log, helper_keys=helper_key, images=images,
            addresses={"distributor": tuple(distributor), "aggregator": tuple(aggregator)}, roots=roots,
        )  # fmt: skip
        (values if keep is None else accepting_both(values, ReferenceValues.load(keep))).save(output)
    print_text(str(output))


def _log_policy(
    log_keys: list[str], endorser_keys: list[str], witness_keys: list[str], quorum: int | None
) -> LogPolicy:
    from odp.trust.enclave.log_policy import LogPolicy

    return LogPolicy(
        log_keys=tuple(log_keys),
        endorser_keys=tuple(endorser_keys),
        witness_keys=tuple(witness_keys),
        quorum=len(witness_keys) if quorum is None else quorum,
    )


app.command("build")(build)
app.command("show")(show)
app.command("pin-helper")(pin_helper)
app.command("upgrade")(upgrade)


@app.command("pin-address")
def pin_address(
    role: Annotated[str, typer.Argument(help="distributor, aggregator or issuer.")],
    address: Annotated[str, typer.Argument(help="host:port, as the server names it.")],
    reference_values: Annotated[Path, typer.Option(help="JSON file of what the devices accept.")] = Path(
        "odp-state/reference_values.json"
    ),
) -> None:
    """Add an address of a service to the reference values, so that devices may connect there."""
    import dataclasses

    from odp.transport.channel import parse_address
    from odp.trust.enclave.reference_values import ADDRESSED, ReferenceValues

    _validate.one_of(ADDRESSED, role=role)
    parse_address(address)
    values = ReferenceValues.load(reference_values)
    pinned = tuple(dict.fromkeys((*values.addresses.get(role, ()), address)))
    dataclasses.replace(values, addresses={**values.addresses, role: pinned}).save(reference_values)
    print_text(f"{role}: {', '.join(pinned)} pinned in {reference_values}")


@app.command("root")
def root_certificate(
    platform: Annotated[Path, typer.Option(help="Folder of the emulated hardware; made on first use.")] = Path(
        "odp-state/platform"
    ),
) -> None:
    """Print the root certificate of a machine's emulated hardware, PEM, for `odp enclave reference-values --root`."""
    from odp.operations.local.log_setup import root_of

    print_text(root_of(platform).rstrip())


@app.command("endorser-key")
def show_endorser_key(
    key: Annotated[Path, typer.Option(help="Private key of the endorser; made on first use.")] = Path("endorser.key"),
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print an endorser's public key, which devices and upgrade policies name."""
    from odp.trust.log.key_file import endorser_key

    public_key = endorser_key(key).public.hex()
    print_result({"endorser_key": public_key}, public_key, json=json_output)


@app.command("upgrade-policy")
def write_upgrade_policy(
    log_key: Annotated[
        list[str], typer.Option(help="Verifier key of the log (`odp server log-key`); repeat for further keys of it.")
    ],
    endorser_key: Annotated[
        list[str], typer.Option(help="Public key of an endorser (`odp enclave endorser-key`); repeat for more.")
    ],
    approvals: Annotated[int, typer.Option(help="How many of the endorsers have to endorse the new version.")] = 1,
    witness_key: Annotated[list[str], typer.Option(help="Verifier key of a witness; repeat for more.")] = [],  # noqa: B006
    quorum: Annotated[
        int | None, typer.Option(help="Number of witnesses that have to cosign \\[default: all of them].")
    ] = None,
    output: Annotated[Path, typer.Option(callback=output_file, help="JSON file to write.")] = Path("upgrade.json"),
) -> None:
    """Write who may approve an upgrade of the aggregator: the file of `--upgrade`, which stays the same for good."""
    from odp.trust.enclave.policy import UpgradePolicy

    policy = UpgradePolicy(log=_log_policy(log_key, endorser_key, witness_key, quorum), approvals=approvals)
    with writing_file(output):
        policy.save(output)
    print_text(str(output))


@app.command("endorse")
def endorse(
    reference_values: Annotated[
        Path, typer.Option(help="JSON file with the image digests and policies to endorse.")
    ] = Path("reference_values.json"),
    minimum_cohort: Annotated[int, typer.Option(help="As given to `odp aggregator run`.")] = 100,
    population_epsilon: Annotated[float, typer.Option(help="As given to `odp aggregator run`.")] = 20.0,
    population_delta: Annotated[float, typer.Option(help="As given to `odp aggregator run`.")] = 1e-5,
    accumulation: Annotated[str, typer.Option(help="As given to `odp aggregator run`.")] = "oblivious",
    founder: Annotated[list[str], typer.Option(help="As given to `odp aggregator run`; repeat for more.")] = [],  # noqa: B006
    upgrade: Upgrade = None,
    select: Annotated[str, typer.Option(help="As given to `odp distributor run`.")] = "oblivious",
    key: Annotated[Path, typer.Option(help="Private key of the endorser; made on first use.")] = Path("endorser.key"),
    output: Annotated[
        Path, typer.Option(callback=output_file, help="File for `odp server run --endorsements`.")
    ] = Path("endorsements.json"),
) -> None:
    """Endorse the enclaves of a file of reference values for a year, and print the endorser's public key."""
    import time

    from odp.operations.local.log_setup import endorse_all
    from odp.trust.enclave.policy import EnclavePolicy
    from odp.trust.enclave.reference_values import ReferenceValues
    from odp.trust.log.key_file import endorser_key

    policy = EnclavePolicy(
        role="aggregator",
        minimum_cohort=minimum_cohort,
        population_epsilon=population_epsilon,
        population_delta=population_delta,
        accumulation=cast("Accumulation", accumulation),
        founders=founder_keys(founder),
        upgrade=upgrade_policy(upgrade),
    )
    values = ReferenceValues.load(reference_values)
    named = () if values.log is None else values.log.endorser_keys
    if named and not key.exists():
        raise ConfigurationError(
            f"cannot read the endorser's key {key}: no such file. {reference_values} names its endorsers, and a new "
            "key would be none of them: give the file of one with --key"
        )
    endorser = endorser_key(key)
    if named and endorser.public.hex() not in named:
        raise ConfigurationError(
            f"the key in {key}, {endorser.public.hex()}, is of no endorser that {reference_values} names: nobody would "
            "accept what it endorses"
        )
    policies = (policy, EnclavePolicy(role="distributor", select=cast("Selection", select)))
    with writing_file(output):
        endorse_all(output, values, policies, endorser, now=time.time())
    print_text(endorser.public.hex())


@app.command("withdraw")
def withdraw(
    image_digest: Annotated[str, typer.Argument(help="Image digest whose endorsements end: sha384:..")],
    key: Annotated[Path, typer.Option(help="Private key of the endorser.")] = Path("endorser.key"),
    endorsements: Annotated[Path, typer.Option(help="File of `odp enclave endorse`.")] = Path("endorsements.json"),
) -> None:
    """Withdraw every endorsement of an image. The server reads a changed file within a minute."""
    from odp.operations.local.log_setup import withdraw_all
    from odp.trust.log.key_file import endorser_key

    if not key.is_file():
        raise ConfigurationError(f"cannot read the endorser's key {key}: no such file")
    print_text(f"{withdraw_all(endorsements, image_digest, endorser_key(key))} endorsements withdrawn")
