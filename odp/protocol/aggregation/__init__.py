"""What a task says of its mode of aggregation: where contributions are summed, and who adds the noise."""
