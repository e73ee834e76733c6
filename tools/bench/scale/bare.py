"""The least that an operator on kopf does with pods: be told of each once. A process of its own.

python -m tools.bench.scale.bare URL AUTHORITY CERTIFICATE KEY NAMESPACE COUNT OUT

Writes its peak memory in bytes to OUT once it has seen COUNT pods, and waits to be ended.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import kopf


def peak(pid: int | str = "self") -> int:
    """The most resident memory that a process ever had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main(arguments: list[str]) -> None:
    """Run until ended."""
    url, authority, certificate, key, namespace, count, out = arguments
    registry, seen = kopf.OperatorRegistry(), set[str]()

    def say() -> None:
        Path(out).write_text(str(peak()), encoding="ascii")

    async def pod(event: Any, **_: Any) -> None:
        seen.add(event["object"]["metadata"]["uid"])
        if len(seen) == int(count):
            say()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=url, ca_path=authority, certificate_path=certificate, private_key_path=key)

    kopf.on.event("", "v1", "pods", registry=registry)(pod)
    kopf.on.login(registry=registry)(login)
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    asyncio.run(
        kopf.operator(
            registry=registry, settings=settings, standalone=True, namespaces=(namespace,), clusterwide=False
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
