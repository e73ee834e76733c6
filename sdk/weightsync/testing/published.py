"""What a fake agent remembers of one publish of one rank."""

from dataclasses import dataclass, field

from weightsync.convert.program import CopyProgram
from weightsync.version import Version
from weightsync.wire.local import PublishFailure, Replica


@dataclass
class Published:
    """One publish. All dictionaries are by program digest.

    filled: offset -> digest of the bucket's bytes when it was reported, in the order of the reports; payloads: the
    arena's bytes when everything was copied; failed: what the trainer's side told, None while all is well.
    """

    id: str
    rank: int
    sequence: int
    label: str
    programs: dict[str, CopyProgram]
    replicas: tuple[Replica, ...] = ()
    names: tuple[str, ...] = ()
    filled: dict[str, dict[int, str]] = field(default_factory=dict)
    payloads: dict[str, bytes] = field(default_factory=dict)
    copied: bool = False
    failed: PublishFailure | None = None
    version: Version | None = None

    def parameter(self, name: str, program: str | None = None) -> bytes:
        """The bytes of an engine's parameter; of the only program where none is named."""
        digest = program or next(iter(self.programs))
        place = next(p for p in self.programs[digest].layout.parameters if p.name == name)
        return self.payloads[digest][place.offset : place.offset + place.nbytes]
