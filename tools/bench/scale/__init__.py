"""The operator at the size of a large cluster, against a real API server, beside a handler that does nothing."""
