"""The file that runs inside the engine. Only ``weightsync_hook.py``, and the way to find it as a file."""

from pathlib import Path

HOOK_FILE = Path(__file__).with_name("weightsync_hook.py")  # what the agent lays into the volume for PYTHONPATH
