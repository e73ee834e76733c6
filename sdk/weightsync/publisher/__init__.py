"""What a trainer's loop calls: the Publisher, its handles, and the Unix socket to the agent. No torch on import."""
