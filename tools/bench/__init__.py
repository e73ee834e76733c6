"""Benchmarks. Each writes build/bench/<name>.json; `python tools/report` prints them and checks their bounds."""
