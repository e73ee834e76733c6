"""A node is restarted when, and only when, it should run something else."""

from __future__ import annotations

import re
from pathlib import Path

from tools.cluster import clearing, layout, plan, runtime

NAMES = (*clearing.STOP_ORDER, "ctr", "containerd-shim-runc-v2")


def programs(cache: str, key: str = "key") -> dict[str, Path]:
    """Paths of programs as the cache names them."""
    return {name: Path(cache) / key / name for name in NAMES}


def fingerprint(found: dict[str, Path]) -> str:
    """The fingerprint of this machine's node run by `found`."""
    return plan.make(found, layout.node()).fingerprint()


def test_the_place_of_the_cache_changes_nothing() -> None:
    """Equal: the fingerprints of the same programs in two caches."""
    assert fingerprint(programs("/root/.cache")) == fingerprint(programs("/home/user/.cache"))


def test_other_programs_are_another_node() -> None:
    """Different: the fingerprints of programs with different keys."""
    assert fingerprint(programs("/root/.cache")) != fingerprint(programs("/root/.cache", "other"))


def test_every_program_that_is_started_is_also_stopped() -> None:
    """The stop order names exactly the programs of the plan."""
    assert set(plan.make(programs("/x"), layout.node()).commands) == set(clearing.STOP_ORDER)


def test_nothing_is_kept_outside_the_node_s_folder() -> None:
    """Every absolute path in command lines and files is the node's own, apart from system programs and the group."""
    made = plan.make(programs("/x"), layout.node())
    text = "\n".join([*made.files.values(), *(word for argv in made.commands.values() for word in argv[1:])])
    named = set(re.findall(r"(?<=[\"=])/[\w./-]+", text))
    own = {path for path in named if layout.NODE_FOLDER in Path(path).parents}
    assert len(own) > 10
    assert named - own == {str(runtime.CNI_PROGRAMS), str(runtime.RUNC), f"/{layout.CGROUP}"}
    assert all(layout.NODE_FOLDER in path.parents for path in made.files)
