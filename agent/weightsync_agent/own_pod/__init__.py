"""What the agent writes to the API: status and annotations of its own pod, and nothing else anywhere.

base.py and status.py and problems.py are pure; api.py is the only connection (plan_feed reads through it too);
cluster.py writes, no_pod.py stands in where there is no pod. Importing this package loads no Kubernetes client.
"""
