"""Who may call what."""

import pytest

from reference.auth import allowed


@pytest.mark.parametrize(
    ("path", "header", "api", "admin", "expected"),
    [
        pytest.param("/generate", None, None, None, True, id="no keys: all open"),
        pytest.param("/pause_generation", None, None, None, True, id="no keys: control is open too"),
        pytest.param("/generate", None, "a", None, False, id="API key set: generate needs it"),
        pytest.param("/generate", "Bearer a", "a", "m", True, id="API key opens generate"),
        pytest.param("/generate", "Bearer m", "a", "m", False, id="admin key does not open generate"),
        pytest.param("/generate", None, None, "m", True, id="admin key alone leaves generate open"),
        pytest.param("/pause_generation", "Bearer a", "a", None, True, id="API key opens control if alone"),
        pytest.param(
            "/pause_generation", "Bearer a", "a", "m", False, id="API key does not open control beside admin"
        ),
        pytest.param(
            "/pause_generation", "bearer m", "a", "m", True, id="admin key opens control, any case of Bearer"
        ),
        pytest.param("/pause_generation", "m", None, "m", False, id="a key without Bearer"),
        pytest.param("/health_generate", None, "a", "m", True, id="probes are open"),
        pytest.param("/ready", None, "a", "m", True, id="readiness is open"),
        pytest.param("/server_info", None, "a", "m", False, id="information takes the API key"),
        pytest.param("/server_info", "Bearer a", "a", "m", True, id="and opens with it"),
    ],
)
def test_keys_open_what_sglang_lets_them_open(
    path: str, header: str | None, api: str | None, admin: str | None, expected: bool
) -> None:
    """Control takes the admin key if set, else the API key, else is open."""
    assert allowed(path, header, api, admin) is expected
