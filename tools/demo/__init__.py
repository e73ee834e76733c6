"""The demo: the main job on a real cluster, what happens shown while it happens, and judged at the end.

options, site         what was asked; where it runs: this machine's node, or the cluster of KUBECONFIG
manifests, sources    what is applied; the examples' sources as pods can mount them
kubectl, watching     commands; pods and logs as events
story                 what has happened, and what is to be done next (pure)
figures               the report and its bounds (pure)
table                 what the user sees
run                   the order of it all
"""
