"""What the demo lays over the examples' manifests."""

from pathlib import Path

import pytest
import yaml

from tools.demo.manifests import kustomization, split_image
from tools.demo.site import Mounts, Site

HERE = Path("/here")


def site(mounts: Mounts | None) -> Site:
    return Site(HERE, HERE, HERE, image="r.example:5000/x/weightsync:1", example="python:3", mounts=mounts)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        pytest.param("localhost/weightsync:dev", ("localhost/weightsync", "dev"), id="a tag"),
        pytest.param("r.example:5000/weightsync", ("r.example:5000/weightsync", "latest"), id="a port, no tag"),
        pytest.param("r.example:5000/weightsync:1", ("r.example:5000/weightsync", "1"), id="a port and a tag"),
    ],
)
def test_split_image(image: str, expected: tuple[str, str]) -> None:
    """A port is no tag."""
    assert split_image(image) == expected


def test_a_given_cluster_mounts_nothing_of_the_host() -> None:
    """Images only; the trainer's arguments are patched all the same."""
    document = kustomization(site(None), "ns", 12, "../base")
    text = yaml.safe_dump(document)
    assert "hostPath" not in text
    assert [image["newName"] for image in document["images"]] == ["r.example:5000/x/weightsync", "python"]
    assert any("'12'" in patch["patch"] for patch in document["patches"])


def test_the_local_node_mounts_sources_and_packages_read_only() -> None:
    """In trainer and engine; the hook's folder comes first on the engine's path."""
    document = kustomization(site(Mounts(Path("/s"), Path("/p"))), "ns", 12, "../base")
    patches = [yaml.safe_load(patch["patch"]) for patch in document["patches"]]
    for patch in patches:
        (container,) = patch["spec"]["template"]["spec"]["containers"]
        assert all(mount["readOnly"] for mount in container["volumeMounts"])
        assert [volume["hostPath"]["path"] for volume in patch["spec"]["template"]["spec"]["volumes"]] == ["/s", "/p"]
    assert container["env"][0]["value"].split(":")[0] == "/dev/weightsync/python"
