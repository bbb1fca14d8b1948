"""What a developer asks a population: a training or a question, in Python, as a file and as text."""
