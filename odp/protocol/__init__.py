"""What parties write to each other."""
