"""The agent beside each trainer and engine pod: it owns the arenas, moves the bytes and drives the engine."""
