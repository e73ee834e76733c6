"""Helm on our chart."""

import pytest

from tests.build.charts import Helm
from tests.conftest import unavailable
from tools.setup import helm
from tools.setup.errors import SetupError


@pytest.fixture(scope="session")
def chart() -> Helm:
    """Helm; the test is unavailable where it cannot be fetched."""
    try:
        return Helm(helm.executable())
    except SetupError as error:
        unavailable(f"helm cannot be set up: {error}")
        raise
