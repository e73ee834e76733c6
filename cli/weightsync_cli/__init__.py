"""The command line: `weightsync` and `kubectl weightsync`. One module a command; the work is done by the others."""
