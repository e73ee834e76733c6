"""The one error of the local cluster: a sentence that says what is wrong and what to do."""


class ClusterError(Exception):
    """The cluster cannot be started, stopped or used; the message says why and what to do."""
