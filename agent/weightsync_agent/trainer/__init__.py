"""The trainer's side door: the Publisher's requests over the Unix socket of the shared volume."""
