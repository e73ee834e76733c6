"""What docs/planning.md shows is what the code takes, and it names every reason."""

import re
from pathlib import Path

from weightsync_operator.inventory import Inventory
from weightsync_operator.planning import reasons

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "planning.md").read_text(encoding="utf-8")
# What conditions say when all is well, and events.
WELL = {
    reasons.ALL_SERVED, reasons.COORDINATOR_CHANGED, reasons.IDLE, reasons.IN_SYNC, reasons.NOTHING_PUBLISHED,
    reasons.PLANNED, reasons.SOURCES_ANNOUNCED, reasons.SYNCING, reasons.ENGINES_JOINING, reasons.SYNC_FAILED,
    reasons.DEVICES_READY,
}  # fmt: skip


def test_the_inventory_is_read(tmp_path: Path) -> None:
    """The documented file, as it stands."""
    found = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    path = tmp_path / "agents.yaml"
    path.write_text(found[1], encoding="utf-8")
    inventory = Inventory.load_yaml(path)
    assert [agent.role for agent in inventory.agents] == ["trainer", "engine"]
    assert inventory.transfer.bucket_bytes == 64 * 2**20


def test_every_reason_that_asks_for_something_is_documented() -> None:
    """A new reason comes with a word in the table."""
    every = {value for name, value in vars(reasons).items() if name.isupper()}
    assert {reason for reason in every - WELL if f"`{reason}`" not in TEXT} == set()
