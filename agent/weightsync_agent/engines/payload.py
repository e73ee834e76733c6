"""The body that makes SGLang call the hook, made without torch.

``/update_weights_from_tensor`` wants one pickled list of (name, tensor) per tensor-parallel rank, in base64; each
rank unpickles its own entry and hands it to the loader that ``load_format`` names. The hook needs no tensors, so
the list is empty: what SGLang's ``MultiprocessingSerializer.serialize([])`` gives, pickle protocol 4.
"""

from typing import Any

from weightsync.names import HOOK_LOADER

EMPTY_LIST = "gARdlC4="


def hook_call(tp_size: int) -> dict[str, Any]:
    """The call's body. An entry less than ranks would end the engine, which indexes the list without a guard.

    flush_cache is false always: before 0.5.21 a flush that is refused there ends the server, and later the refusal
    would hide whether the hook ran. The draft model of speculative decoding is left alone, in both releases' words.
    """
    return {
        "serialized_named_tensors": [EMPTY_LIST] * tp_size,
        "load_format": HOOK_LOADER,
        "flush_cache": False,
        "abort_all_requests": False,
        "disable_draft_model": True,  # before sessions
        "selector": "target",  # since
    }
