"""Settings from the environment: what is taken, what is refused, and in which words."""

from pathlib import Path

import pytest

from weightsync.errors import InputError
from weightsync_agent.settings import Settings

IN_CLUSTER = {
    "WEIGHTSYNC_ROLE": "engine",
    "POD_NAME": "rollout-1",
    "POD_NAMESPACE": "rl",
    "POD_UID": "uid-1",
    "POD_IP": "10.0.0.7",
}
FROM_FILE = {"WEIGHTSYNC_ROLE": "trainer", "WEIGHTSYNC_PLAN": "file:/etc/plan.yaml", "WEIGHTSYNC_UID": "trainer-0"}


def settings(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], **more: str) -> Settings:
    """Settings of an environment that holds exactly these variables of ours."""
    for name in ("POD_NAME", "POD_NAMESPACE", "POD_UID", "POD_IP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**environment, **more}.items():
        monkeypatch.setenv(name, value)
    return Settings.from_environment()


def test_a_pod_needs_only_its_role_and_the_downward_api(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else has a default that fits a pod."""
    found = settings(monkeypatch, IN_CLUSTER)
    assert (found.uid, found.name, found.address) == ("uid-1", "rollout-1", "10.0.0.7:8960")
    assert (found.in_cluster, found.plan_path, found.auth_mode) == (True, None, "token")
    assert found.directory == Path("/dev/weightsync")
    assert (found.source_arenas, found.slice_bytes, found.ports) == (2, 1048576, (15000, 17000))


def test_a_plan_file_needs_a_uid_and_takes_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cluster the uid is given, and agents show one another the shared secret."""
    found = settings(
        monkeypatch, FROM_FILE, WEIGHTSYNC_ADVERTISE="fd00::1", WEIGHTSYNC_PORT="9001", WEIGHTSYNC_DIR="/t"
    )
    assert (found.uid, found.name, found.address) == ("trainer-0", "trainer-0", "[fd00::1]:9001")
    assert (found.plan_path, found.auth_mode, found.directory) == (Path("/etc/plan.yaml"), "secret", Path("/t"))


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        pytest.param("WEIGHTSYNC_PORT", "tcp://10.96.0.9:80", "port", 8960, id="a Service's link is no port of ours"),
        pytest.param("WEIGHTSYNC_MEMORY_LIMIT", "8Gi", "memory_limit", 8 * 2**30, id="memory as a quantity"),
        pytest.param(
            "WEIGHTSYNC_MEMORY_LIMIT", "1000", "memory_limit", 1000, id="memory as the downward API gives it"
        ),
        pytest.param("WEIGHTSYNC_SLICE_BYTES", "256Ki", "slice_bytes", 262144, id="slices as a quantity"),
        pytest.param("WEIGHTSYNC_TRANSPORT", "RDMA", "transport", "rdma", id="a transport in capitals"),
        pytest.param("WEIGHTSYNC_DEVICES", "mlx5_0,mlx5_1", "device_names", ("mlx5_0", "mlx5_1"), id="devices"),
        pytest.param("WEIGHTSYNC_GID_INDEX", "0", "gid_index", 0, id="the first GID"),
        pytest.param("WEIGHTSYNC_RDMA_MTU", "4096", "rdma_mtu", 4096, id="an MTU"),
        pytest.param("WEIGHTSYNC_LOG_LEVEL", "DEBUG", "log_level", "debug", id="a level in capitals"),
        pytest.param("WEIGHTSYNC_SECRET_FILE", "", "secret_file", None, id="empty is unset"),
        pytest.param("WEIGHTSYNC_PROGRAMS", "/etc/p", "programs", Path("/etc/p"), id="programs made beforehand"),
    ],
)
def test_accepted(monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str, expected: object) -> None:
    """Values as Kubernetes and people write them."""
    assert getattr(settings(monkeypatch, {**IN_CLUSTER, name: value}), field) == expected


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        pytest.param({}, "WEIGHTSYNC_ROLE is not set", id="no role"),
        pytest.param(
            {"WEIGHTSYNC_ROLE": "server"}, "WEIGHTSYNC_ROLE=server: input should be 'trainer'", id="bad role"
        ),
        pytest.param(
            IN_CLUSTER | {"POD_UID": ""}, "POD_UID not set, which a plan from the cluster needs", id="no uid"
        ),
        pytest.param(
            FROM_FILE | {"WEIGHTSYNC_UID": ""}, "WEIGHTSYNC_UID is not set: with a plan file", id="file, no uid"
        ),
        pytest.param(
            IN_CLUSTER | {"WEIGHTSYNC_PLAN": "/etc/plan"},
            "WEIGHTSYNC_PLAN=/etc/plan: write cluster or file:/path",
            id="bad plan",
        ),
        pytest.param(
            IN_CLUSTER | {"WEIGHTSYNC_PORT": "90000"}, "WEIGHTSYNC_PORT=90000: input should be less", id="port"
        ),
        pytest.param(
            IN_CLUSTER | {"WEIGHTSYNC_MEMORY_LIMIT": "8 GB"},
            "WEIGHTSYNC_MEMORY_LIMIT=8 GB: '8 GB' is not a number of",
            id="GB",
        ),
        pytest.param(
            IN_CLUSTER | {"WEIGHTSYNC_TRANSFER_PORTS": "15000-15001"},
            "holds 2 ports: give at least 20",
            id="two ports",
        ),
        pytest.param(
            IN_CLUSTER | {"WEIGHTSYNC_TRANSFER_PORTS": "17000-15000"},
            "17000-15000 is no range of ports",
            id="reversed",
        ),
        pytest.param(
            IN_CLUSTER | {"WEIGHTSYNC_DIR": "here"}, "WEIGHTSYNC_DIR is here: give an absolute", id="relative"
        ),
        pytest.param(
            IN_CLUSTER | {"WEIGHTSYNC_DEVICES": "mlx5_0 mlx5_1"},
            "WEIGHTSYNC_DEVICES=mlx5_0 mlx5_1: write <dev",
            id="devices",
        ),
        pytest.param(
            IN_CLUSTER | {"WEIGHTSYNC_RDMA_MTU": "9000"},
            "WEIGHTSYNC_RDMA_MTU=9000: an RDMA packet has 512",
            id="an MTU",
        ),
        pytest.param(IN_CLUSTER | {"WEIGHTSYNC_SOURCE_ARENAS": "3"}, "WEIGHTSYNC_SOURCE_ARENAS=3", id="three arenas"),
        pytest.param(
            IN_CLUSTER | {"WEIGHTSYNC_STALL_SECONDS": "inf"}, "WEIGHTSYNC_STALL_SECONDS=inf", id="an endless stall"
        ),
        pytest.param(
            FROM_FILE | {"WEIGHTSYNC_AUTH": "token"}, "AUTH=token needs the cluster's keys", id="token, file"
        ),
        pytest.param(
            IN_CLUSTER | {"WEIGHTSYNC_AUTH": "secret"}, "AUTH=secret needs WEIGHTSYNC_SECRET_FILE", id="secret"
        ),
        pytest.param(
            IN_CLUSTER | {"WEIGHTSYNC_ENGINE_URL": "localhost:30000"},
            "WEIGHTSYNC_ENGINE_URL=localhost:30000",
            id="no scheme",
        ),
    ],
)
def test_refused(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], sentence: str) -> None:
    """The error names the variable, its value, and what to give instead."""
    with pytest.raises(InputError) as caught:
        settings(monkeypatch, environment)
    assert sentence in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_every_wrong_variable_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two mistakes, one error: nobody restarts a pod once per mistake."""
    with pytest.raises(InputError, match=r"WEIGHTSYNC_PORT=x: .*; WEIGHTSYNC_IO_THREADS=0: "):
        settings(monkeypatch, IN_CLUSTER, WEIGHTSYNC_PORT="x", WEIGHTSYNC_IO_THREADS="0")


def test_overrides_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag wins over the environment, the environment over the default."""
    for name, value in IN_CLUSTER.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WEIGHTSYNC_PORT", "9000")
    assert Settings.from_environment().port == 9000
    found = Settings.from_environment(port=9001, pod_uid="uid-2", directory="/elsewhere")
    assert (found.port, found.uid, found.directory) == (9001, "uid-2", Path("/elsewhere"))
