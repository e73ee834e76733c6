"""Driving a rollout engine: which calls, in which order, and how the hook inside it is asked.

base          what any engine must offer, and the records that cross that line
sequence      the order of a commit: pure
incarnation   which life of the engine's processes this is: pure
server_info   the few fields of SGLang's answers that are kept, and why an engine cannot be fed: pure
payload       the constant that makes SGLang call the hook
hook_files    requests and results of the hook, as files in the volume
keys, http    the engine's keys; one call with its deadline and its words
sglang        the adapter: where the engine is paused
"""
