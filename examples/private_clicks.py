"""Learn when people open notifications from reports that are private before they leave a phone.

python examples/private_clicks.py

Each phone sends one report in its life. Its own ε holds whoever reads the report; the ε of what is released, which is
smaller, holds for those who trust the enclave that sums reports and adds noise.
"""

import numpy as np

import odp
from odp.algorithms.registry import algorithm_for

PEOPLE, EACH, FEATURES = 4000, 10, 6

# Invented people.
generator = np.random.default_rng(1)
truth = generator.normal(size=FEATURES) * 3.0
x = generator.uniform(-1, 1, (PEOPLE * EACH, FEATURES)).astype(np.float32)
opened = (generator.random(len(x)) < 1 / (1 + np.exp(-x @ truth))).astype(np.float32)
users = odp.data.UsersExamples.of_users(x, opened, np.arange(len(x)) // EACH)
people = odp.data.ExamplesSplit(train=users, test=users)


def train(direction_epsilon: float) -> odp.RunResult:
    """One simulated training whose reports have this epsilon for the direction of an update, and 4 for its length."""
    task = odp.Task(
        name="notifications",
        model=odp.Glm("logistic", features=FEATURES),
        data=odp.Examples({"context": odp.Tensor((FEATURES,), -1, 1)}, label="opened"),
        privacy=odp.UserLevelDP(epsilon=4, delta=1e-5),
        training=odp.PrivateFL(
            rounds=10, rate=0.5, epochs=4, server_rate=2.0, direction_epsilon=direction_epsilon, magnitude_epsilon=4.0
        ),
        cohort=odp.Cohort(minimum=100, goal=400),
    )
    return odp.simulate(task, people)


for direction_epsilon in (16.0, 4.0, 1.0, 0.25):
    run = train(direction_epsilon)
    charge = algorithm_for(run.task.definition()).local_charge
    print(f"accuracy {run.metrics['test_accuracy']:.3f}, released: ε = {run.epsilon:.3f}; {charge.in_words}")
