"""Boots small QEMU guests with a soft-RoCE device (real verbs, no hardware) and runs a command in them.

Here is what makes, joins and ends guests; what is run in them is the caller's. A guest is emulated: it shows whether
code is right, never how fast it is.
"""
