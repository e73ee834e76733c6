"""Bodies of the HTTP APIs: v1 between agents, local between trainer and agent. Pydantic only, no torch."""
