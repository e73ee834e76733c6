"""Every decision of the operator, as pure functions: no I/O, no clock, no kopf. Start at compose.py.

A pass goes through it in this order: ownership (whose pod), grouping (pods to engines), sources and membership (who
can take part, and why others cannot), mapping (who writes to whom), coordinator and term (who runs it, fenced how),
slicing and changes (what to write), conditions and status (what to say).
"""
