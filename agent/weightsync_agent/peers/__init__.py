"""The HTTP API between agents: thin. Bodies are weightsync.wire.v1; what to answer is decided elsewhere."""
