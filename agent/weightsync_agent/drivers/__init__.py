"""What runs the machines: feeds events, does actions, decides nothing.

An ``if`` about policy belongs into protocol/; here stand only calls, waits and files.
"""
