"""The local cluster: a real one-node Kubernetes on this machine, and a light one of etcd and API server only.

Standard library only: `python3 tools/cluster` also runs before the development environment exists.
"""
