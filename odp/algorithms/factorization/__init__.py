"""What the trainings of a matrix factorization share: terms, contributions, enforcement, exact sums, estimates."""
