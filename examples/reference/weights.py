"""Changing and checking the weights of the running model. All of it runs on the model's thread."""

import hashlib
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from reference.behaviour import Behaviour
from reference.checkpoint import read_checkpoint
from reference.payload import decode_named_tensors
from reference.scheduler import Scheduler
from reference.shards import Shards
from weightsync.errors import InputError

NOT_FLUSHED = (
    "Weights were updated, but the cache was not flushed: requests are running or waiting. "
    "Let them finish or retract them, then call /flush_cache."
)


class Refused(InputError):
    """The call is understood and answered with success false."""


class WeightUpdater:
    """loaders: the names that --custom-weight-loader allows as load format; shards: of the scheduler's model."""

    def __init__(self, scheduler: Scheduler, behaviour: Behaviour, loaders: tuple[str, ...], shards: Shards) -> None:
        self._scheduler, self._model, self._shards = scheduler, scheduler.model, shards
        self._behaviour, self._loaders = behaviour, loaders
        self._open = False
        self._snapshot: dict[str, Tensor] | None = None

    def begin(self) -> None:
        """Open a session. Raises Refused if one is open."""
        if self._open:
            raise Refused("a weight-update session is already open; call end_weight_update() first")
        self._open = True

    def end(self) -> None:
        """Close the session; the model has nothing to finish. Raises Refused if none is open."""
        if not self._open:
            raise Refused("no weight-update session is open; call begin_weight_update() first")
        self._open = False

    def from_tensor(self, payloads: list[str], load_format: str | None, flush: bool, version: str | None) -> None:
        """Call the custom loader. What it raises ends the engine, as in SGLang."""
        if self._behaviour.sessions and not self._open:
            raise Refused("update_weights_from_tensor must run between begin_weight_update() and end_weight_update()")
        ranks = len(self._shards.ranks)
        if len(payloads) < ranks:
            raise Refused(
                f"serialized_named_tensors has {len(payloads)} entries, one for each of {ranks} ranks is due"
            )
        for payload in payloads[:ranks]:
            decode_named_tensors(payload)
        if load_format is not None:
            if load_format not in self._loaders:
                raise NotImplementedError(f"Unknown load_format={load_format}")
            self._shards.load(load_format, payloads[:ranks])
        self._after(flush, version)

    def from_disk(self, directory: str, flush: bool, version: str | None) -> None:
        """Load a whole checkpoint. Nothing is changed where it cannot be read or has another shape."""
        try:
            config, state = read_checkpoint(Path(directory))
        except InputError as error:
            raise Refused(str(error)) from error
        if config != self._model.config:
            raise Refused(f"{directory}: config.json is another model's than the one that is served")
        self._model.load_weights(state.items())
        self._shards.split()
        self._after(flush, version)

    def _after(self, flush: bool, version: str | None) -> None:
        if version is not None:
            self._scheduler.version = version
        if flush and not self._scheduler.flush():
            if self._behaviour.failed_flush_is_fatal:
                raise RuntimeError("Cache flush failed after updating weights")
            raise Refused(NOT_FLUSHED)

    def checker(self, action: str) -> dict[str, Any] | None:
        """What /weights_checker does; for "checksum" the rank's document."""
        match action:
            case "checksum":
                return self._checksum()
            case "snapshot":
                self._snapshot = {name: tensor.detach().clone() for name, tensor in self._tensors().items()}
            case "reset_tensors":
                generator = torch.Generator().manual_seed(0)
                with torch.no_grad():
                    for tensor in self._tensors().values():
                        tensor.copy_(torch.rand(tensor.shape, generator=generator))
                self._shards.split()
            case "compare":
                self._compare()
            case _:
                raise Refused(f"Unsupported action={action!r}")
        return None

    def _tensors(self) -> dict[str, Tensor]:
        return dict(self._model.named_parameters())

    def _compare(self) -> None:
        if self._snapshot is None:
            raise Refused("there is no snapshot to compare with; call action snapshot first")
        changed = [name for name, tensor in self._tensors().items() if not torch.equal(tensor, self._snapshot[name])]
        if changed:
            raise Refused(f"{len(changed)} tensors differ from the snapshot: {', '.join(changed[:3])}")

    def _checksum(self) -> dict[str, Any]:
        checksums = {
            name: xxhash.xxh3_128_hexdigest(tensor.detach().flatten().view(torch.uint8).numpy().data)
            for name, tensor in self._tensors().items()
        }
        total = hashlib.sha256()
        for name in sorted(checksums):
            total.update(name.encode() + checksums[name].encode())
        sizes = {f"{kind}_size": 1 for kind in ("tp", "dp", "pp")} | {
            f"{kind}_rank": 0 for kind in ("tp", "dp", "pp")
        }
        place = {"role": "target", "rank": 0, "size": 1} | sizes
        return {"checksums": checksums, "per_gpu_checksum": total.hexdigest(), "parallelism_info": place}
