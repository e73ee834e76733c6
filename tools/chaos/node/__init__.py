"""Trials on a real node: pods under a kubelet, struck in the middle of syncs while a trainer goes on publishing."""
