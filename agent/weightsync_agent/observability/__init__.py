"""What an agent says of its work: log lines and metrics. It decides nothing and holds no secret."""
