"""Where plans come from: a file, or head and slices of a WeightSync. Both end in weightsync.plan.Plan.

base.py and heads.py are pure; importing this package loads no Kubernetes client.
"""
