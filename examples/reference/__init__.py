"""The reference engine: a real small transformer behind the part of SGLang's HTTP API that WeightSync drives.

config, checkpoint   the model's sizes, tensor names, owners; checkpoints as files
model                what a trainer trains: unfused, Hugging Face names
engine_model, alone  what the engine runs: fused, with a KV cache; one request computed by itself
programs             layout and copy program of each rank
everything else      the server
"""
