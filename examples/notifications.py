"""Learn from many phones when a person opens a notification, and save a picture. No phone's data leave it.

python examples/notifications.py [PICTURE.png] [--save DATA.npz]

Each phone keeps fifty past notifications: the hour, whether the phone lay still, how many came in the last hour, how
often this app was opened, and whether the person opened the notification. The model is a logistic regression.
"""

import argparse

import matplotlib as mpl
import numpy as np

import odp

mpl.use("Agg")
from matplotlib import pyplot

PEOPLE, EACH = 4000, 50

arguments = argparse.ArgumentParser()
arguments.add_argument("picture", nargs="?", default="notifications.png")
arguments.add_argument("--save", help="also write the invented data, for `odp simulate --data`")
chosen = arguments.parse_args()

# Invented people: most open more in the evening, and less when many notifications come.
generator = np.random.default_rng(4)
count = PEOPLE * EACH
hour = generator.integers(0, 24, count)
features = {
    "evening": np.maximum(0.0, 1.0 - np.abs(hour - 20) / 6.0),
    "still": generator.integers(0, 2, count).astype(float),
    "last_hour": np.minimum(generator.poisson(4, count), 12.0),
    "opened_before": generator.beta(2, 3, count),
}
pull = (
    1.5 * features["evening"] - 0.8 * features["still"] - 0.25 * features["last_hour"] + 3 * features["opened_before"]
)
opened = generator.random(count) < 1 / (1 + np.exp(-(pull - 0.4)))
user = np.arange(count) // EACH
test = user >= PEOPLE * 9 // 10

task = odp.Task(
    name="notifications",
    model=odp.Glm("logistic", features=4),
    data=odp.Examples(
        {
            "evening": odp.Tensor((), low=0, high=1),
            "still": odp.Tensor((), low=0, high=1),
            "last_hour": odp.Tensor((), low=0, high=12, scale=1 / 12),
            "opened_before": odp.Tensor((), low=0, high=1),
        },
        label="opened",
    ),
    privacy=odp.UserLevelDP(epsilon=2, delta=1e-5),
    training=odp.DPFedAvg(rounds=10, clip=2.0, rate=1.0, epochs=3),
    cohort=odp.Cohort(minimum=500, goal=3600),
)
table = np.column_stack([features[name] for name in task.data.features]).astype(np.float32)
people = odp.data.ExamplesSplit(
    train=odp.data.UsersExamples.of_users(table[~test], opened[~test], user[~test]),
    test=odp.data.UsersExamples.of_users(table[test], opened[test], user[test]),
    name="notifications",
)
if chosen.save:
    np.savez(chosen.save, **features, opened=opened, user=user, test=test)
    print("data:", chosen.save)

private = odp.simulate(task, people, seed=1)
free = odp.simulate(task, people, seed=1, noise=False)
guess = max(opened[test].mean(), 1 - opened[test].mean())
for done in private.rounds[::3]:
    print(f"round {done.round}: accuracy {done.metrics['test_accuracy']:.4f}, ε spent {done.epsilon:.4f} of 2")
print(f"accuracy {private.metrics['test_accuracy']:.4f} at ε = {private.epsilon:.4f}, δ = {private.delta:g} per person")
print(f"without privacy {free.metrics['test_accuracy']:.4f}; always the same answer {guess:.4f}")

spent = [done.epsilon for done in private.rounds]
figure, axes = pyplot.subplots(figsize=(6.4, 4))
axes.plot(spent, [done.metrics["test_accuracy"] for done in private.rounds], marker="o", label="private")
axes.axhline(free.metrics["test_accuracy"], color="0.5", linestyle="--", label="without privacy")
axes.axhline(guess, color="0.7", linestyle=":", label="always the same answer")
axes.set_xlabel("ε spent, per person, over all rounds")
axes.set_ylabel("accuracy on people who took no part")
axes.legend(frameon=False)
for side in ("top", "right"):
    axes.spines[side].set_visible(False)
figure.tight_layout()
figure.savefig(chosen.picture, dpi=120)
print("picture:", chosen.picture)
