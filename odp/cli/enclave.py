"""`odp enclave`: what devices pin."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odp.cli.console import print_text
from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from odp.enclave.policy import EnclavePolicy
    from odp.transparency.policy import LogPolicy

app = typer.Typer(help="Which enclaves a device accepts: reference values and endorsements.", no_args_is_help=True)


@app.command("reference-values")
def reference_values(
    platform: Annotated[
        Path, typer.Option(help="Folder of the emulated hardware: its root certificate is pinned.")
    ] = Path("odp-state/platform"),
    minimum_cohort: Annotated[int, typer.Option(help="As given to `odp aggregator run`.")] = 100,
    population_epsilon: Annotated[float, typer.Option(help="As given to `odp aggregator run`.")] = 20.0,
    population_delta: Annotated[float, typer.Option(help="As given to `odp aggregator run`.")] = 1e-5,
    log_key: Annotated[
        list[str], typer.Option(help="Verifier key of the transparency log to require; without one, none is required.")
    ] = [],  # noqa: B006  # typer copies it
    endorser_key: Annotated[
        list[str], typer.Option(help="Whose endorsements in the log count: 64 hex digits; repeat for more.")
    ] = [],  # noqa: B006
    witness_key: Annotated[list[str], typer.Option(help="Verifier key of a witness; repeat for more.")] = [],  # noqa: B006
    quorum: Annotated[int | None, typer.Option(help="Witnesses that have to cosign [default: all named].")] = None,
    output: Annotated[Path, typer.Option(help="Where to write the JSON file.")] = Path("reference_values.json"),
) -> None:
    """Write the reference values of the enclaves that this installation runs: root, image digests, policies.

    Digests and policies are computed from the installed code and the options, not asked from a running service.
    """
    from odp.enclave.policy import EnclavePolicy
    from odp.transparency.policy import LogPolicy

    policy = EnclavePolicy(
        role="aggregator",
        minimum_cohort=minimum_cohort,
        population_epsilon=population_epsilon,
        population_delta=population_delta,
    )
    log = None
    if log_key:
        log = LogPolicy(
            log_keys=tuple(log_key),
            endorser_keys=tuple(endorser_key),
            witness_keys=tuple(witness_key),
            quorum=len(witness_key) if quorum is None else quorum,
        )
    elif endorser_key or witness_key or quorum is not None:
        raise ConfigurationError("Expected --log-key with --endorser-key, --witness-key and --quorum")
    write_reference_values(platform, policy, output, log=log)
    print_text(str(output))


@app.command("endorse")
def endorse(
    reference_values: Annotated[
        Path, typer.Option(help="JSON file whose image digests and policies are endorsed.")
    ] = Path("reference_values.json"),
    minimum_cohort: Annotated[int, typer.Option(help="As given to `odp aggregator run`.")] = 100,
    population_epsilon: Annotated[float, typer.Option(help="As given to `odp aggregator run`.")] = 20.0,
    population_delta: Annotated[float, typer.Option(help="As given to `odp aggregator run`.")] = 1e-5,
    key: Annotated[Path, typer.Option(help="Private key of the endorser; made on first use.")] = Path("endorser.key"),
    output: Annotated[Path, typer.Option(help="File for `odp server run --endorsements`.")] = Path("endorsements.json"),
) -> None:
    """Endorse, for a year, the enclaves that a file of reference values lists; prints the endorser's public key."""
    import time

    from odp.cli.log_setup import endorse_all
    from odp.enclave.policy import EnclavePolicy
    from odp.enclave.reference_values import ReferenceValues
    from odp.transparency.key_file import endorser_key

    policy = EnclavePolicy(
        role="aggregator",
        minimum_cohort=minimum_cohort,
        population_epsilon=population_epsilon,
        population_delta=population_delta,
    )
    endorser = endorser_key(key)
    values = ReferenceValues.load(reference_values)
    endorse_all(output, values, (policy, EnclavePolicy(role="distributor")), endorser, now=time.time())
    print_text(endorser.public.hex())


@app.command("withdraw")
def withdraw(
    image_digest: Annotated[str, typer.Argument(help="Image digest whose endorsements no longer hold: sha384:..")],
    key: Annotated[Path, typer.Option(help="Private key of the endorser.")] = Path("endorser.key"),
    endorsements: Annotated[Path, typer.Option(help="File of `odp enclave endorse`.")] = Path("endorsements.json"),
) -> None:
    """Withdraw every endorsement of an image; takes effect when the server starts with the file again."""
    from odp.cli.log_setup import withdraw_all
    from odp.transparency.key_file import endorser_key

    if not key.is_file():
        raise ConfigurationError(f"cannot read the endorser's key {key}: no such file")
    print_text(f"{withdraw_all(endorsements, image_digest, endorser_key(key))} endorsements withdrawn")


def write_reference_values(
    platform: Path, aggregator_policy: EnclavePolicy, output: Path, *, log: LogPolicy | None = None
) -> None:
    """Reference values for enclaves of this code on ``platform``, written atomically to ``output``."""
    from odp.enclave.measurement import AGGREGATOR_PACKAGES, DISTRIBUTOR_PACKAGES, image_digest
    from odp.enclave.platform import EmulatedPlatform
    from odp.enclave.policy import EnclavePolicy
    from odp.enclave.reference_values import ReferenceValues

    policies = {"aggregator": aggregator_policy, "distributor": EnclavePolicy(role="distributor")}
    ReferenceValues(
        roots=(EmulatedPlatform.open(platform).root_certificate_pem,),
        image_digests={
            "aggregator": (image_digest(AGGREGATOR_PACKAGES),),
            "distributor": (image_digest(DISTRIBUTOR_PACKAGES),),
        },
        policy_sha256={role: (hashlib.sha256(policy.to_bytes()).hexdigest(),) for role, policy in policies.items()},
        allow_emulated=True,
        log=log,
    ).save(output)
