"""How many devices have rows that a training can use: one vote each, released once, before the training spends ε."""
