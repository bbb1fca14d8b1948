"""What is asked again and again: schedules, their charges, and models that live."""
