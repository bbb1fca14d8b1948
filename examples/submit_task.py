"""Submit a task to the services of `odp up`, watch its rounds, and fetch the model.

In three terminals, from the root of the repository:

    odp up
    python examples/submit_task.py
    odp device run --population films --data synthetic:n_users=300,n_items=60,ratings_per_user=20 --until-finished

python examples/submit_task.py [--server HOST:PORT] [--state odp-state] [--model films.npy]
"""

import argparse
import sys
from pathlib import Path

import numpy as np

import odp
from odp.v1 import common_pb2, server_pb2


def main() -> None:
    """Runs the task of films.toml to its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default=Path(__file__).with_name("films.toml"), help="task file")
    parser.add_argument("--server", help="host:port of the server [default: that of --state]")
    parser.add_argument("--state", default="odp-state", help="folder of `odp up`: it has the CA and the token")
    parser.add_argument("--model", default="films.npy", help="where to save the item table")
    given = parser.parse_args()

    task = odp.load_task(given.task)
    with odp.connect(given.server, state=given.state) as connection:
        handle = connection.submit(task)  # the same task again is the same handle, so this script can be repeated
        print(f"task {handle.task_sha256.hex()[:12]}: each round waits for {task.cohort.goal} devices", flush=True)
        shown = 0
        for status in handle.watch():
            for done in status.rounds[shown:]:
                if done.state == server_pb2.RoundStatus.STATE_APPLIED:
                    release = common_pb2.Release.FromString(done.release.release)
                    print(
                        f"round {done.round + 1}/{status.planned_rounds}: {release.contributions} devices, "
                        f"ε spent {release.epsilon_spent:.4f} of {task.privacy.epsilon:g}",
                        flush=True,
                    )
                    shown += 1
        if status.state != server_pb2.TaskStatus.STATE_FINISHED:
            raise odp.errors.ServiceError(f"the task ended early: {status.failure or 'cancelled'}")
        model = handle.model()
    # One row per item: noisy count, bias, how far to trust it, factors.
    np.save(given.model, model.keyed.rows)
    print(f"model version {model.version}, {len(model.keyed.rows)} items: {given.model}")


if __name__ == "__main__":
    try:
        main()
    except odp.OdpError as error:
        sys.exit(f"submit_task: {error}")
    except KeyboardInterrupt:
        sys.exit("submit_task: stopped watching; the task goes on, start again to watch it")
