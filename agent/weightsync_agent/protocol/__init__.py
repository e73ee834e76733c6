"""The machines: (state, event, now) -> actions. No I/O, no clock, no task, no file.

Five machines take part in a sync; what couples them is (term, sync, grant), carried by every message:

    coordinator     one per trainer: grants -> orders -> staged -> decision -> commits        (coordinator.py)
    route           one per (source rank, target rank, sync): write -> check -> verified     (route.py)
    target          one per engine rank: whose bytes may land in the arena, what they are    (target.py)
    engine leader   one per engine: which version it serves, torn or whole                   (engine_leader.py)
    engine member   one per further pod of an engine: what it holds for its leader           (engine_member.py)

An event that a table does not hold raises ProtocolError and changes nothing.
"""
