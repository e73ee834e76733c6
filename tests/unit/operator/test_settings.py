"""Flag before environment before default; what is wrong is one line."""

import pytest
from pydantic_settings import CliApp

from weightsync_operator import __main__ as program
from weightsync_operator.settings import Settings

PREFIX = "WEIGHTSYNC_OPERATOR_"


def read(*flags: str) -> Settings:
    return CliApp.run(Settings, cli_args=list(flags))


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        pytest.param([], {}, 300.0, id="the default"),
        pytest.param([], {"RESYNC_SECONDS": "60"}, 60.0, id="the environment beats the default"),
        pytest.param(["--resync-seconds=30"], {"RESYNC_SECONDS": "60"}, 30.0, id="a flag beats the environment"),
        pytest.param([], {"RESYNC_SECONDS": ""}, 300.0, id="an empty variable says nothing"),
    ],
)
def test_precedence(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], environment: dict[str, str], expected: float
) -> None:
    """Each source beats the next."""
    for name, value in environment.items():
        monkeypatch.setenv(PREFIX + name, value)
    assert read(*flags).resync_seconds == expected


@pytest.mark.parametrize("form", ["--namespaces=a,b", "env"])
def test_namespaces_are_a_list(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Comma-separated, by flag and by environment."""
    if form == "env":
        monkeypatch.setenv(f"{PREFIX}NAMESPACES", "a, b,")
        assert read().namespaces == ("a", "b")
    else:
        assert read(form).namespaces == ("a", "b")


def test_the_pod_is_who_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Identity and the Lease's namespace come from the downward API."""
    monkeypatch.setenv("POD_NAME", "operator-1")
    monkeypatch.setenv("POD_NAMESPACE", "weightsync")
    found = read("--leader-election")
    assert (found.identity, found.lease_namespace) == ("operator-1", "weightsync")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        pytest.param(["--resync-seconds=1"], "resync_seconds: ", id="too small"),
        pytest.param(["--topology-labels=a,b,c,d,e,f,g,h,i"], "topology_labels: ", id="more labels than plans carry"),
        pytest.param(["--leader-election"], "set POD_NAMESPACE or --lease-namespace", id="a Lease without a place"),
    ],
)
def test_wrong_settings_are_one_line(monkeypatch: pytest.MonkeyPatch, flags: list[str], said: str) -> None:
    """The program ends with a sentence, without a traceback."""
    monkeypatch.delenv("POD_NAMESPACE", raising=False)
    monkeypatch.setattr("sys.argv", ["weightsync-operator", *flags])
    with pytest.raises(SystemExit) as caught:
        program.main()
    assert str(caught.value).startswith("weightsync-operator: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
