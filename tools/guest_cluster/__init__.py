"""A Kubernetes whose nodes are emulated guests with an RDMA device: kubelet, containerd and the stock device plugin.

The control plane runs on this machine at full speed, at the guests' wire. Nothing here knows WeightSync.
"""
