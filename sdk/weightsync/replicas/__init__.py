"""One engine rank's model built without a GPU, a process group or the checkpoint's bytes, and what is learned of it.

`python3 -m weightsync.replicas` writes layout and copy program of every rank. Runs where the engine's package can be
imported; besides that it needs what the package brings itself (torch, pydantic). torch and the engine are imported
only by what builds and traces.
"""
