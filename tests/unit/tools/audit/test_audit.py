"""The audit: what is new is said, what is accepted is still there; what an image holds is read from itself."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from tools.audit import findings, sbom
from tools.setup.errors import SetupError


def finding(rule: str, path: str) -> dict[str, object]:
    return {"test_id": rule, "filename": path, "line_number": 7, "issue_severity": "LOW", "issue_text": "why"}


def test_what_nobody_accepted_is_told_with_its_place() -> None:
    """An accepted finding in another file is no excuse."""
    accepted = [finding(rule, path) for rule, path in findings.ACCEPTED]
    assert findings.judge(accepted) == ([], [])
    new, gone = findings.judge([*accepted, finding("B101", "sdk/x.py")])
    assert (new, gone) == (["sdk/x.py:7: B101 (LOW): why"], [])


def test_what_is_accepted_and_gone_is_told() -> None:
    """So that the list does not grow old."""
    assert findings.judge([])[1] == sorted(findings.ACCEPTED)


def packed(files: dict[str, str]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return target.getvalue()


def image(path: Path, *layers: dict[str, str]) -> Path:
    names = [f"{index}.tar" for index in range(len(layers))]
    with tarfile.open(path, "w") as tar:
        files = [("manifest.json", json.dumps([{"Layers": names}]).encode())]
        files += [(name, packed(layer)) for name, layer in zip(names, layers, strict=True)]
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


SITE = "opt/weightsync/lib/python3.11/site-packages"


def test_packages_are_read_from_the_images_layers(tmp_path: Path) -> None:
    """Python's from their metadata, Debian's that are installed, ours left out."""
    made = image(
        tmp_path / "image.tar",
        {
            "var/lib/dpkg/status": "Package: libc6\nStatus: install ok installed\nVersion: 2.36-9\n\n"
            "Package: old\nStatus: deinstall ok config-files\nVersion: 1\n"
        },
        {
            f"{SITE}/kopf-1.45.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: Kopf\nVersion: 1.45.2\n\nText\n",
            f"{SITE}/weightsync-0.1.0.dist-info/METADATA": "Name: weightsync\nVersion: 0.1.0\n",
        },
    )
    assert sbom.read(made) == ([("kopf", "1.45.2")], [("libc6", "2.36-9")])


def test_an_image_without_packages_is_no_image_of_ours(tmp_path: Path) -> None:
    """Rather an error than an empty list that looks like an answer."""
    with pytest.raises(SetupError, match="no packages found"):
        sbom.read(image(tmp_path / "image.tar", {"etc/hostname": "x"}))


def test_debian_packages_stand_beside_pythons() -> None:
    """Each with a package URL."""
    document = sbom.compose({"components": [{"name": "kopf"}]}, [("libc6", "2.36-9")])
    assert [one["name"] for one in document["components"]] == ["kopf", "libc6"]
    assert document["components"][1]["purl"] == "pkg:deb/debian/libc6@2.36-9"
