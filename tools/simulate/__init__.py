"""The simulator: the real machines in a seeded fake world with virtual time, checked after every event.

    clock        events, tasks, locks: virtual time
    network      messages between agents: late, lost, twice, out of order
    memory       what arenas and engines hold, as symbols
    transfer     workers, and writes whose pieces land one by one
    serving      an engine: pauses, applies, restarts, falls silent
    ledger       what is true, whatever the machines believe
    invariants   the fifteen sentences, one function each
    target_side, rank_target, source_agent, source_rank, routes, coordination   thin drivers around the machines
    trainer, planner, pods   who drives them
    faults       what may go wrong, and when
    world        one schedule from a seed to its end
    coverage     rows, guards and states that were reached
    bugs, mutants   what must be found
    runner       many schedules in several processes; shrinking; reports

Nothing here decides for a machine: what is a decision belongs into weightsync_agent.protocol.
"""
