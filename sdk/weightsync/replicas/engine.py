"""What identifies the engine whose ranks are built: model, parallel sizes, flags. Pure."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field

from weightsync.bounds import Ranks
from weightsync.errors import InputError
from weightsync.records import Record, read_file

# Of a model's folder: the files that decide which parameters the engine has. Weights and tokenizers are not needed.
CONFIGS = ("config.json", "hf_quant_config.json", "quantize_config.json", "generation_config.json")
LARGEST_CONFIG = 16 * 2**20


class EngineSpec(Record):
    """An engine: a local model folder, and how it is cut. flags: further ones of SGLang's own command line."""

    model: Annotated[str, Field(min_length=1)]
    tp: Ranks = 1
    pp: Ranks = 1
    ep: Ranks = 1
    flags: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """How many: rank = pipeline rank x tp + tensor rank, as torch.distributed numbers the engine's processes."""
        return self.tp * self.pp

    def describe(self) -> str:
        """For messages."""
        return " ".join((self.model, f"--tp {self.tp} --pp {self.pp} --ep {self.ep}", *self.flags))


class Rebuild(Record):
    """What a rank's model is built from where there is no model folder: the text in CopyProgram.engine."""

    release: str
    spec: EngineSpec
    files: dict[str, str]

    @classmethod
    def of(cls, spec: EngineSpec, release: str) -> "Rebuild":
        """From a model folder. Raises InputError where it has no configuration."""
        files = {}
        for name in CONFIGS:
            path = Path(spec.model) / name
            if path.exists():
                try:
                    files[name] = read_file(path, LARGEST_CONFIG).decode()
                except (OSError, UnicodeDecodeError) as error:
                    raise InputError(f"{path}: cannot be read: {error}") from error
        if "config.json" not in files:
            raise InputError(f"{spec.model}: holds no config.json; give the folder of a Hugging Face checkpoint")
        try:
            classes = json.loads(files["config.json"]).get("architectures")
        except (ValueError, AttributeError) as error:
            raise InputError(f"{spec.model}/config.json: is no JSON object: {error}") from error
        if not classes:
            raise InputError(
                f'{spec.model}/config.json: names no model class: add "architectures" as the model\'s release has it'
            )
        return cls(release=release, spec=spec, files=files)

    def text(self) -> str:
        """For CopyProgram.engine. Without the folder's place: programs that are made alike have one digest."""
        return self.model_copy(update={"spec": self.spec.model_copy(update={"model": "."})}).canonical().decode()

    def lay(self, folder: Path) -> EngineSpec:
        """Write the files into a folder; the spec that names it."""
        for name, text in self.files.items():
            if name not in CONFIGS:
                raise InputError(f"a replica is not built from {name!r}: only {', '.join(CONFIGS)} are known")
            (folder / name).write_text(text)
        return self.spec.model_copy(update={"model": str(folder)})
