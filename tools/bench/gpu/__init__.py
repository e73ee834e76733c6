"""The GPU benchmark: a trainer's CUDA tensors to a real engine, through real agents, the wire and the hook.

command   options, parts in their order, the report after each
site      the world: trainer's pod and engine's pod, from a plan file; the trainer's tensors
programs  the engine rank's copy program, made where SGLang imports
pure      the copies that cannot be avoided: between the device and pinned host memory, nothing else
syncs     publishes, and what requests in flight see of them
oracle    tokens and checksums against a load from disk of the same checkpoint
others    the same bytes by SGLang's own calls and by Mooncake into the parameters
"""
