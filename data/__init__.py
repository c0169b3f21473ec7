"""Data sets and their partitions: `client_data(DatasetSpec("digits", clients=20), 3).train`."""
