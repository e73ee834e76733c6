"""Builds an engine rank's model with SGLang, on the meta device: no GPU, no process group, no memory.

What differs between releases is behind two small classes, sglang_context.Place and sglang_globals.Place.
"""

import io
import sys
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib import util
from typing import Any

from weightsync.errors import InputError
from weightsync.replicas.engine import EngineSpec
from weightsync.replicas.release import release
from weightsync.replicas.replica import ALONE, Place, Replica


def build_replica(spec: EngineSpec, rank: int) -> Replica:
    """Rank ``rank``'s model, parameters on the meta device. Raises InputError with SGLang's own words."""
    if not 0 <= rank < spec.ranks:
        raise InputError(f"rank {rank} does not exist among {spec.ranks} (tp {spec.tp} x pp {spec.pp})")
    release()
    with ALONE, _placeholders():
        try:
            return _build(spec, rank)
        except InputError:
            raise
        except ImportError as error:
            raise InputError(f"SGLang {release()} cannot be imported here: {error}") from error
        except (Exception, SystemExit) as error:
            raise InputError(
                f"SGLang {release()} builds no rank {rank} of {spec.describe()}: {words_of(error)}"
            ) from error


def words_of(error: BaseException) -> str:
    """An exception in one line. Many of SGLang's checks are assertions without a word: then the line says it all."""
    text = " ".join(str(error).split())
    said = f"{type(error).__name__}: {text}".removesuffix(": ")
    if "NVIDIA driver" in text:
        return f"{said}. SGLang asks the GPU which kernels it has for this model: run this where the engine runs"
    if isinstance(error, ValueError) and text:
        return said
    frames = traceback.extract_tb(error.__traceback__)
    return f"{said} (at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line})" if frames else said


def _build(spec: EngineSpec, rank: int) -> Replica:
    import torch  # noqa: PLC0415 - seconds, and only where a model is built
    from sglang.srt.configs.load_config import LoadConfig  # noqa: PLC0415
    from sglang.srt.configs.model_config import ModelConfig  # noqa: PLC0415
    from sglang.srt.model_loader import loader  # noqa: PLC0415
    from sglang.srt.model_loader.utils import set_default_torch_dtype  # noqa: PLC0415

    server_args = _server_args(spec)
    place = _place(server_args, rank)
    with place.entered():
        config = ModelConfig.from_server_args(server_args)
        load = LoadConfig(load_format="dummy")
        quantization = loader._get_quantization_config(config, load)
        with set_default_torch_dtype(config.dtype), torch.device("meta"):
            model = loader._initialize_model(config, load, quantization)
    return Replica(model.eval(), place, rank)


def _server_args(spec: EngineSpec) -> Any:
    """SGLang's own reading of the command line. Raises InputError where its parser ends the process."""
    from sglang.srt.server_args import prepare_server_args  # noqa: PLC0415

    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            server_args = prepare_server_args(_arguments(spec))
    except SystemExit as end:
        said = printed.getvalue().strip().rpartition("\n")[2] or f"exit code {end.code}"
        raise InputError(f"SGLang {release()} does not take {' '.join(spec.flags) or 'these flags'}: {said}") from end
    sys.stderr.write(printed.getvalue())
    return server_args


def _arguments(spec: EngineSpec) -> list[str]:
    """SGLang's command line. Ours come last: they are what the last word is about."""
    ours = {"model-path": spec.model, "tp-size": spec.tp, "pp-size": spec.pp, "ep-size": spec.ep}
    ours |= {"device": "cpu", "load-format": "dummy"}
    return [*spec.flags, "--skip-tokenizer-init", *(f"--{name}={value}" for name, value in ours.items())]


def _place(server_args: Any, rank: int) -> Place:
    from sglang.srt import runtime_context  # noqa: PLC0415

    if hasattr(runtime_context, "create_context"):
        from weightsync.replicas.sglang_context import Place as ByContext  # noqa: PLC0415

        return ByContext(server_args, rank)
    from weightsync.replicas.sglang_globals import Place as ByGlobals  # noqa: PLC0415

    return ByGlobals(server_args, rank)


@contextmanager
def _placeholders() -> Iterator[None]:
    """On a host without an accelerator, constructors of rotary embeddings import a kernel of vLLM that only a forward
    pass calls. Where vLLM is not installed an empty function stands in for it while a model is built.
    """
    if util.find_spec("vllm") is not None:
        yield
        return
    package, operations = types.ModuleType("vllm"), types.ModuleType("vllm._custom_ops")
    operations.rotary_embedding = None  # type: ignore[attr-defined]
    package._custom_ops = operations  # type: ignore[attr-defined]
    added = {"vllm": package, "vllm._custom_ops": operations}
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)
