"""RDMA devices of this pod: what they are, which of them can be used, and which rank uses which.

records and choice are pure; sysfs reads a tree of files that it is given; verbs asks libibverbs and the limits of
this process.
"""
