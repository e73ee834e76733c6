"""The contract suite and the hook's timings against a real SGLang. For a machine with a GPU and SGLang installed."""
