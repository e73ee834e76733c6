"""Real faults: agents, workers, engines, the trainer and the network are made to fail in a running world.

cases.py says which faults, judging.py what must hold; site.py is the world, running.py runs one case in it.
"""
