"""Pictures of results in one house style; matplotlib is imported where one is drawn."""
