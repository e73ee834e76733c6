"""A small world without Kubernetes: real agents, real engines and a real planner as processes of this machine.

Tests, benchmarks and fault trials share it. It starts processes, asks them, ends them; it asserts nothing.
"""
