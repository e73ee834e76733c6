"""What a check found. Pure."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """found: what is there, or the cause of a failure; remedy: what to do, empty where all is well."""

    check: str
    status: Status
    found: str
    remedy: str = ""

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def exit_code(findings: list[Finding]) -> int:
    """1 where a check failed."""
    return int(any(finding.status == "failed" for finding in findings))
