"""The in-engine hook: one file of standard library and torch, loaded by the rollout engine itself.

The agent lays this file into the shared volume; the engine's PYTHONPATH names that folder, and the engine is
started with ``--custom-weight-loader weightsync_hook.load``. One HTTP call then runs ``load`` in every rank's
process, on the thread that schedules requests: nothing is generated meanwhile. What to do stands in
``hook/request-<rank>.json``, what came of it in ``hook/result-<rank>.json``.

request  {id, op: describe | pin | snapshot | apply | readback, incarnation?, arena?, program?, layout?, grant?,
          root?, parameters?, digests?}     paths absolute, digests in hex; incarnation: "" or who the agent means
result   {id, op, rank, incarnation, ok, ...}, or on failure {..., ok: false, reason, error, touched, trace}

Nothing may be raised out of ``load``: SGLang runs it without a guard, and an exception ends the whole server
(seen on 0.5.17). So the engine always answers with success, and the result file alone tells the truth.
"""

import ctypes
import hashlib
import json
import mmap
import os
import struct
import time
import traceback
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

# The arena's header: the same struct as sdk/weightsync/arena.py (a test holds the two together).
MAGIC = b"WSARENA1"
FIELDS = struct.Struct("<8sQQ16s16s16s8sQ32s")
CHECKSUM = struct.Struct("<I")
PAYLOAD = 4096
EMPTY, FILLING, SEALED = 0, 1, 2
STATES = {EMPTY: "Empty", FILLING: "Filling", SEALED: "Sealed"}

CONSTANT = "_skip_weight_check"  # SGLang's mark on scalars that it sets itself, unless the checkpoint does
CHUNK = 64 << 20  # bytes compared at a time on the device: the engine leaves little memory free there

Json = dict[str, Any]


class Refusal(Exception):
    """The request cannot be served; ``reason`` is for machines, the sentence for people."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Header(NamedTuple):
    """The arena's header as the request compares it; digests in hex."""

    state: int
    nbytes: int
    layout: str
    grant: str
    root: str


class Row(NamedTuple):
    """One row of the layout."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Live(NamedTuple):
    """One parameter of the running model. tied: the earlier parameter that has the very same memory, or "".
    constant: a scalar that the engine sets where the checkpoint does not (attention's k_scale): it may have no row.
    """

    tensor: torch.Tensor
    tied: str
    constant: bool = False


class Pair(NamedTuple):
    """A row of the layout and the parameter that it fills. again: an earlier row fills the same memory."""

    row: Row
    tensor: torch.Tensor
    again: bool


class Mapped:
    """An arena's file in this process: mapped once, pinned once."""

    def __init__(self, path: str) -> None:
        self.path = path
        with Path(path).open("r+b") as file:
            status = os.fstat(file.fileno())
            if status.st_size <= PAYLOAD:
                raise Refusal("ArenaInvalid", f"{path}: {status.st_size} bytes are no arena")
            self.identity = (status.st_dev, status.st_ino)
            self.size = status.st_size
            self._map = mmap.mmap(file.fileno(), status.st_size)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.pinned = False

    def header(self) -> Header:
        """Raises Refusal where the file carries no whole header."""
        data = self._map[: FIELDS.size + CHECKSUM.size]
        magic, state, nbytes, layout, _, grant, _, _, root = FIELDS.unpack_from(data)
        if magic != MAGIC:
            raise Refusal("ArenaInvalid", f"{self.path}: not an arena (magic {magic!r})")
        if CHECKSUM.unpack_from(data, FIELDS.size)[0] != zlib.crc32(data[: FIELDS.size]):
            raise Refusal("ArenaInvalid", f"{self.path}: the arena's header is torn or corrupted")
        if state not in STATES or self.size != PAYLOAD + nbytes:
            raise Refusal("ArenaInvalid", f"{self.path}: state {state}, {nbytes} bytes in a file of {self.size}")
        return Header(state, nbytes, layout.hex(), grant.hex(), root.hex())

    def pin(self) -> str:
        """Register the pages with CUDA, so that copies run at the bus's speed. Answers what CUDA refused, or ""."""
        if self.pinned:
            return ""
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = runtime.cudaHostRegister(self.bytes.data_ptr(), self.size, 0)
        self.pinned = int(code) == 0
        if self.pinned:
            return ""
        _forget_cuda_error()
        return f"{self.path}: CUDA could not pin {self.size} bytes (error {int(code)})"

    def drop(self) -> None:
        """Undo pin and map: the file was replaced or removed. The map goes with the last tensor on it."""
        if self.pinned:
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())  # type: ignore[no-untyped-call]
        del self.bytes, self._map


class State:
    """What this process keeps between calls."""

    def __init__(self) -> None:
        self.done = ""  # id of the last request that ran
        self.mapped: dict[str, Mapped] = {}
        self.layouts: dict[tuple[str, int, int, int], tuple[str, int, tuple[Row, ...]]] = {}

    def arena(self, path: str) -> Mapped:
        """The mapping of ``path`` as it lies there now. Mappings of replaced or removed files are dropped."""
        for known in list(self.mapped.values()):
            if _identity(known.path) != known.identity:
                del self.mapped[known.path]
                known.drop()
        if path not in self.mapped:
            if _identity(path) is None:
                raise Refusal("ArenaMissing", f"{path}: no such arena in the engine's container")
            self.mapped[path] = Mapped(path)
        return self.mapped[path]

    def layout(self, path: str) -> tuple[str, int, tuple[Row, ...]]:
        """(digest, payload bytes, rows) of a program file. Parsing takes long for big models: once per file."""
        try:
            status = Path(path).stat()
            key = (path, status.st_ino, status.st_mtime_ns, status.st_size)
            if key not in self.layouts:
                self.layouts = {k: v for k, v in self.layouts.items() if k[0] != path}
                self.layouts[key] = _read_layout(json.loads(Path(path).read_bytes())["layout"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refusal("ProgramInvalid", f"{path}: no copy program ({type(error).__name__}: {error})") from error
        return self.layouts[key]


STATE = State()


def load(model: torch.nn.Module, named_tensors: object) -> None:
    """What SGLang calls. named_tensors is empty: the bytes come through the arena."""
    del named_tensors
    rank = _rank()
    folder = Path(os.environ.get("WEIGHTSYNC_DIR") or "/dev/weightsync") / "hook"
    result: Json = {"id": "", "op": "", "rank": rank, "incarnation": incarnation(), "ok": False, "touched": False}
    asked = folder / f"request-{rank}.json"
    if not asked.exists():
        return  # another rank was asked, or the agent has given up on a call that comes late
    try:
        request = json.loads(asked.read_bytes())
        result.update(id=request["id"], op=request["op"])
        if request["id"] == STATE.done:
            return  # a call that the agent gave up on came late; the first one's result stands
        STATE.done = request["id"]
        meant = request.get("incarnation")
        if meant and meant != result["incarnation"]:
            raise Refusal("EngineRestarted", f"rank {rank}: {meant} is meant, this is {result['incarnation']}")
        result.update(OPERATIONS[request["op"]](model, request, result), ok=True)
    except Exception as error:  # noqa: BLE001 - see the head of this file: it would end the server
        result["reason"] = error.reason if isinstance(error, Refusal) else "HookFailed"
        sentence = str(error) if isinstance(error, Refusal) else f"{type(error).__name__}: {error}"
        result["error"] = f"rank {rank}: {sentence}"[:4000]
        result["trace"] = traceback.format_exc(limit=8)[-4000:]
    _write(folder / f"result-{rank}.json", result)


def describe(model: torch.nn.Module, request: Json, result: Json) -> Json:
    """The table of parameters in the model's order, never with addresses: those would go stale."""
    table = [
        {
            "name": name, "dtype": _dtype(live.tensor), "shape": list(live.tensor.shape),
            "contiguous": live.tensor.is_contiguous(), "nbytes": live.tensor.nbytes,
            "device": str(live.tensor.device), "tied": live.tied,
            "constant": float(live.tensor) if live.constant else None,
        }
        for name, live in live_parameters(model).items()
    ]  # fmt: skip
    return {
        "parameters": table, "world_size": _world_size(), "torch": torch.__version__, "repacked": repacked(model),
    }  # fmt: skip


def pin(model: torch.nn.Module, request: Json, result: Json) -> Json:
    """Map the arena, pin it where there is CUDA, read the layout: all that need not happen in a pause."""
    start = time.perf_counter()
    arena = STATE.arena(request["arena"])
    if request.get("program"):
        STATE.layout(request["program"])
    refused = arena.pin() if _on_cuda(model) else ""
    if refused:
        raise Refusal("PinFailed", refused)
    return {"nbytes": arena.size - PAYLOAD, "seconds": time.perf_counter() - start, "pinned": arena.pinned}


def snapshot(model: torch.nn.Module, request: Json, result: Json) -> Json:
    """Copy the live parameters into an arena that is Filling under the request's grant; the model stays as it is."""
    start = time.perf_counter()
    arena = STATE.arena(request["arena"])
    header = checked_header(arena, request, FILLING, ("layout", "grant"))
    pairs = matched(request, arena.path, header, live_parameters(model))
    if _on_cuda(model):
        torch.cuda.synchronize()  # what the last batch still computes may be derived tensors
    for row, tensor, _ in pairs:
        _slice(arena, row).copy_(flat(tensor), non_blocking=True)
    if _on_cuda(model):
        torch.cuda.synchronize()
    return {"nbytes": sum(pair.row.nbytes for pair in pairs), "seconds": time.perf_counter() - start}


def apply(model: torch.nn.Module, request: Json, result: Json) -> Json:
    """Copy the sealed arena into the live parameters, by name; all is checked before the first byte.

    A failure after the first byte says ``touched``: the parameters are nobody's version then.
    """
    start = time.perf_counter()
    arena = STATE.arena(request["arena"])
    header = checked_header(arena, request)
    live = live_parameters(model)
    pairs = matched(request, arena.path, header, live)
    refuse_new_constants(model, arena, [pair.row for pair in pairs if live[pair.row.name].constant])
    on_cuda, unpinned = _on_cuda(model), ""
    if on_cuda:
        unpinned = arena.pin()  # without it the copy is slower, and right all the same
        # An in-place pause leaves the last batch's kernels running on another stream: they still read the weights.
        torch.cuda.synchronize()
    begin = time.perf_counter()
    result["touched"] = True
    with torch.inference_mode():
        for row, tensor, again in pairs:
            if not again:
                flat(tensor).copy_(_slice(arena, row), non_blocking=True)
    steps = [*post_load_steps(model), *derived_buffers(model)]  # looked for while the device copies: milliseconds
    if on_cuda:
        torch.cuda.synchronize()
    end = time.perf_counter()
    if arena.header() != header:
        raise Refusal("ArenaChanged", f"{arena.path}: its header changed while it was copied: apply again")
    with torch.no_grad():
        for step in steps:
            step()
    if on_cuda and steps:
        torch.cuda.synchronize()
    copied = sum(pair.row.nbytes for pair in pairs if not pair.again)
    return {
        "nbytes": copied, "seconds": time.perf_counter() - start, "copy_seconds": end - begin,
        "post_load_seconds": time.perf_counter() - end, "pinned": arena.pinned, "unpinned": unpinned,
        "post_load": bool(steps),
    }  # fmt: skip


def readback(model: torch.nn.Module, request: Json, result: Json) -> Json:
    """Read live parameters out of the model.

    With an arena: is every byte of every row equal to it ("equal", "difference")? With ``digests``: blake2b
    (16 bytes) of each parameter. ``parameters``: only these names.
    """
    start = time.perf_counter()
    live = live_parameters(model)
    wanted = request.get("parameters") or []
    unknown = [name for name in wanted if name not in live]
    if unknown:
        raise Refusal("ParameterUnknown", f"{unknown[0]} is no parameter of the engine")
    answer: Json = {"equal": None, "difference": "", "digests": {}, "nbytes": 0}
    if request.get("arena"):
        arena = STATE.arena(request["arena"])
        pairs = matched(request, arena.path, checked_header(arena, request), live)
        pairs = [pair for pair in pairs if not wanted or pair.row.name in wanted]
        answer["difference"] = first_unequal(arena, pairs)
        answer["equal"] = not answer["difference"]
        answer["nbytes"] = sum(pair.row.nbytes for pair in pairs)
    if request.get("digests"):
        chosen = {name: live[name].tensor for name in wanted or live}
        _refuse_strided(chosen)
        answer["digests"] = {name: digest(tensor) for name, tensor in chosen.items()}
        answer["nbytes"] = max(answer["nbytes"], sum(tensor.nbytes for tensor in chosen.values()))
    answer["seconds"] = time.perf_counter() - start
    return answer


OPERATIONS = {"describe": describe, "pin": pin, "snapshot": snapshot, "apply": apply, "readback": readback}


def post_load_steps(model: torch.nn.Module) -> list[Callable[[], object]]:
    """What derives tensors from parameters (MLA's w_kc and w_vc): of the outermost modules that have it.

    SGLang's loaders call the model's own ``post_load_weights``; a model that wraps another and has none of its own
    calls the inner one's, at the end of its ``load_weights``, which is not run here.
    """
    step = getattr(model, "post_load_weights", None)
    if callable(step):
        return [step]
    return [step for child in model.children() for step in post_load_steps(child)]


def derived_buffers(model: torch.nn.Module) -> list[Callable[[], object]]:
    """What makes anew the buffers that forward reads in place of a parameter: no copy by name reaches them.

    Gemma's norms keep weight + 1, made by the weight's own loader (gemma, qwen3-next, minimax; newer releases have a
    method for it); the gate of GLM-4's experts keeps its weight in float32 from the first forward on (0.5.17). In
    place, since captured CUDA graphs read them where they are.
    """
    steps: list[Callable[[], object]] = []
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor):
            continue
        refresh = getattr(module, "refresh_gemma_weight", None)
        gemma, gate = getattr(module, "gemma_weight", None), getattr(module, "_weight_fp32", None)
        if callable(refresh):
            steps.append(refresh)
        elif isinstance(gemma, torch.Tensor) and gemma.shape == weight.shape:
            steps.append(partial(torch.add, weight.data, 1.0, out=gemma))
        if isinstance(gate, torch.Tensor) and gate.shape == weight.shape:
            steps.append(partial(gate.copy_, weight.data))
    return steps


def repacked(model: torch.nn.Module) -> str:
    """The first module whose engine changes parameters after loading, in a sentence; "" where none does.

    Such parameters may keep name, dtype, shape and size, and hold other bytes than the checkpoint's. SGLang's
    quantised layers do so, and some of its kernels for experts; other methods named Unquantized... do not.
    """
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if not callable(getattr(method, "process_weights_after_loading", None)):
            continue
        kind = type(method).__name__
        if not kind.startswith("Unquantized"):
            return f"{name} ({kind}) is repacked after loading"
        if getattr(method, "use_flashinfer_trtllm_moe", False):
            return f"{name} ({kind}, FlashInfer's TRT-LLM experts) is repacked after loading"
    return ""


def live_parameters(model: torch.nn.Module) -> dict[str, Live]:
    """All parameters by name, also those that share their memory with an earlier one."""
    first: dict[tuple[torch.device, int, int], str] = {}
    live: dict[str, Live] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        tensor = parameter.data
        tied = first.setdefault((tensor.device, tensor.data_ptr(), tensor.nbytes), name) if tensor.nbytes else name
        constant = tensor.numel() == 1 and bool(getattr(parameter, CONSTANT, False))
        live[name] = Live(tensor, "" if tied == name else tied, constant)
    return live


def refuse_new_constants(model: torch.nn.Module, arena: Mapped, rows: list[Row]) -> None:
    """SGLang keeps attention's scales as Python numbers, too (k_scale_float), and captured CUDA graphs hold these: a
    scale that changes would be the old one in some kernels and the new one in others. Raises Refusal.
    """
    for row in rows:
        module, _, leaf = row.name.rpartition(".")
        kept = getattr(model.get_submodule(module), f"{leaf}_float", None)
        value = float(_slice(arena, row).view(getattr(torch, row.dtype)))
        if kept is not None and kept != value:
            raise Refusal(
                "ConstantChanged",
                f"{row.name} is {value} in the version and {kept} in the engine, whose kernels hold it as a number: "
                "start the engine from that checkpoint, or publish the scale that it has",
            )


def checked_header(
    arena: Mapped, request: Json, state: int = SEALED, fields: tuple[str, ...] = ("layout", "grant", "root")
) -> Header:
    """The header, if it is what the request names. Raises Refusal."""
    header = arena.header()
    if header.state != state:
        why = "its bytes are no version" if state == SEALED else f"{STATES[state]} is asked"
        raise Refusal(f"Not{STATES[state]}", f"{arena.path} is {STATES[header.state]}: {why}")
    for field in fields:
        asked, found = request.get(field), getattr(header, field)
        if asked != found:
            raise Refusal(f"{field.capitalize()}Mismatch", f"{arena.path} carries {field} {found}, {asked} is asked")
    return header


def matched(request: Json, path: str, header: Header, live: dict[str, Live]) -> list[Pair]:
    """Rows of the layout with the parameters that they fill. Raises Refusal with the first difference."""
    digest_found, nbytes, rows = STATE.layout(request["program"])
    if digest_found != header.layout:
        raise Refusal("LayoutMismatch", f"{request['program']} holds layout {digest_found}, {path} {header.layout}")
    if nbytes != header.nbytes:
        raise Refusal("LayoutMismatch", f"{path} has {header.nbytes} bytes, its layout {nbytes}")
    difference = first_difference(rows, live, nbytes)
    if difference:
        raise Refusal("LayoutMismatch", difference)
    _refuse_strided({row.name: live[row.name].tensor for row in rows})
    seen: set[str] = set()
    pairs = []
    for row in rows:
        owner = live[row.name].tied or row.name
        pairs.append(Pair(row, live[row.name].tensor, owner in seen))
        seen.add(owner)
    return pairs


def first_difference(rows: tuple[Row, ...], live: dict[str, Live], nbytes: int) -> str:
    """A sentence about the first row that the model does not have so, or the first parameter that no row fills."""
    for row in rows:
        here = f"{row.name} {row.dtype} {row.shape}"
        if row.name not in live:
            return f"{here} is in the layout and no parameter of the engine"
        tensor = live[row.name].tensor
        if (row.dtype, row.shape) != (_dtype(tensor), tuple(tensor.shape)):
            return f"{here} in the layout, {_dtype(tensor)} {tuple(tensor.shape)} in the engine"
        if row.nbytes != tensor.nbytes or row.offset < 0 or row.offset + row.nbytes > nbytes:
            return f"{here}: bytes {row.offset} to {row.offset + row.nbytes} do not fit a payload of {nbytes}"
    filled = {live[row.name].tied or row.name for row in rows}
    for name, (tensor, tied, constant) in live.items():
        if (tied or name) not in filled and not constant:
            return f"{name} {_dtype(tensor)} {tuple(tensor.shape)} of the engine is in no row of the layout"
    return ""


def first_unequal(arena: Mapped, pairs: list[Pair]) -> str:
    """The first parameter whose bytes are not the arena's, in a sentence; "" where all are equal."""
    for row, tensor, _ in pairs:
        ours, theirs = flat(tensor), _slice(arena, row)
        for begin in range(0, row.nbytes, CHUNK):
            a = ours[begin : begin + CHUNK]
            b = theirs[begin : begin + CHUNK].to(a.device, non_blocking=True)
            if not torch.equal(a, b):
                at = begin + int((a != b).to(torch.uint8).argmax())
                return f"{row.name} {row.dtype} {row.shape}: byte {at} of {row.nbytes} differs from {arena.path}"
    return ""


def digest(tensor: torch.Tensor) -> str:
    """blake2b of the parameter's bytes, 16 bytes in hex."""
    host = flat(tensor).cpu()  # on a CPU engine the parameter's own memory, not a copy
    view = (ctypes.c_char * host.numel()).from_address(host.data_ptr()) if host.numel() else b""
    return hashlib.blake2b(view, digest_size=16).hexdigest()


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The parameter's own memory as bytes."""
    return tensor.view(-1).view(torch.uint8)


def incarnation() -> str:
    """``<pid>-<start>`` of this process, start in clock ticks after boot: one life of the engine's rank."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return f"{os.getpid()}-{fields[19]}"


def _read_layout(document: Json) -> tuple[str, int, tuple[Row, ...]]:
    rows = tuple(
        Row(str(p["name"]), str(p["dtype"]), tuple(p["shape"]), int(p["offset"]), int(p["nbytes"]))
        for p in document["parameters"]
    )
    # The same bytes that weightsync.layout.Layout hashes: sorted keys, no spaces.
    table = [{**row._asdict(), "shape": list(row.shape)} for row in rows]
    nbytes = int(document["nbytes"])
    text = json.dumps({"nbytes": nbytes, "parameters": table}, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest(), nbytes, rows


def _refuse_strided(tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise Refusal(
                "NotContiguous", f"parameter {name} is not contiguous (strides {tensor.stride()}): it is refused"
            )


def _forget_cuda_error() -> None:
    """A failed runtime call is remembered and raised by the next kernel launch, which would be the engine's."""
    try:
        torch.zeros(1, device="cuda").add_(1)
    except RuntimeError:
        traceback.print_exc(limit=1)  # raised here it is forgotten; the engine's log keeps it


def _slice(arena: Mapped, row: Row) -> torch.Tensor:
    return arena.bytes[PAYLOAD + row.offset : PAYLOAD + row.offset + row.nbytes]


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _on_cuda(model: torch.nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in model.parameters())


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _rank() -> int:
    """The rank within the engine as SGLang numbers it: pp rank x tp size + tp rank; 0 where there is but one."""
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return int(torch.distributed.get_rank()) if ready else 0


def _world_size() -> int:
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return int(torch.distributed.get_world_size()) if ready else 1


def _write(path: Path, result: Json) -> None:
    """Whole or not at all. Another user's agent reads and removes it, so the mode is open."""
    temporary = path.with_suffix(f".{os.getpid()}.new")
    try:
        temporary.write_text(json.dumps(result))
        temporary.chmod(0o666)
        temporary.replace(path)
    except OSError:
        traceback.print_exc()  # the engine's log: the agent sees that no result came
