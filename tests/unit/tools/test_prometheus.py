"""Where Prometheus comes from."""

from pathlib import Path

import pytest

from tools.setup import debian, prometheus
from tools.setup.errors import SetupError


def test_programs_that_are_there_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched where both are in PATH."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert prometheus.programs() == {name: Path(f"/usr/bin/{name}") for name in ("prometheus", "promtool")}


def test_elsewhere_than_on_debian_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them is not enough, and no other system's package is known."""
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/promtool" if name == "promtool" else None)
    monkeypatch.setattr(debian, "is_debian", lambda: False)
    with pytest.raises(SetupError, match="prometheus and promtool are not in PATH"):
        prometheus.programs()
