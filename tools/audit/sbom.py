"""build/sbom.json: every Python and Debian package of the image, as a CycloneDX document.

The packages are read from the image's archive itself, not from what was asked for: what a build took is what counts.
"""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import IO, Any

from tools.setup import tools_env
from tools.setup.errors import SetupError

TARGET = Path("build/sbom.json")
_METADATA = re.compile(r"(?:^|/)opt/weightsync/.*/[^/]+\.dist-info/METADATA$")
_DEBIAN = "var/lib/dpkg/status"
_OWN = "weightsync"

Package = tuple[str, str]  # name, version


def report(root: Path) -> int:
    """Write the document and say how much it holds. 0, or an error is raised."""
    from tools.images import build  # noqa: PLC0415 - the images import the set-up in turn

    python, debian = read(build.prepare(root)[-1].path)
    document = compose(_cyclonedx(root, python), debian)
    target = root / TARGET
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{TARGET}: {len(python)} Python and {len(debian)} Debian packages")
    return 0


def read(archive: Path) -> tuple[list[Package], list[Package]]:
    """Python and Debian packages of a docker archive, by name. Raises SetupError where it holds none."""
    python: set[Package] = set()
    debian: list[Package] = []
    with tarfile.open(archive) as image:
        (manifest,) = json.load(_file(image, "manifest.json"))
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=_file(image, layer)) as files:
                for name, text in _texts(files):
                    if name.endswith(_DEBIAN):
                        debian = list(_debian(text))  # a later layer's list is the whole list
                    else:
                        python.add(_python(text))
    if not python or not debian:
        raise SetupError(f"{archive}: no packages found: has the Dockerfile's layout changed?")
    return sorted(package for package in python if package[0] != _OWN), sorted(debian)


def _file(image: tarfile.TarFile, name: str) -> IO[bytes]:
    found = image.extractfile(name)
    if found is None:
        raise SetupError(f"{image.name!r} has no {name}")
    return found


def _texts(files: tarfile.TarFile) -> Iterator[tuple[str, str]]:
    for member in files:
        if member.isfile() and (_METADATA.search(member.name) or member.name.endswith(_DEBIAN)):
            yield member.name, _file(files, member.name).read().decode()


def _python(metadata: str) -> Package:
    fields = HeaderParser().parsestr(metadata)
    return str(fields["Name"]).lower(), str(fields["Version"])


def _debian(status: str) -> Iterator[Package]:
    for paragraph in status.strip().split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if str(fields["Status"]).endswith(" installed"):
            yield str(fields["Package"]), str(fields["Version"])


def _cyclonedx(root: Path, python: list[Package]) -> dict[str, Any]:
    lines = "".join(f"{name}=={version}\n" for name, version in python)
    program = str(tools_env.prepare(root) / "cyclonedx-py")
    command = [program, "requirements", "--output-format", "JSON", "-"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"cyclonedx-py ended with {done.returncode}: {done.stderr.strip()}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def compose(document: dict[str, Any], debian: list[Package]) -> dict[str, Any]:
    """The document with the Debian packages, and with the image as what it is about."""
    components = [
        {
            "type": "library", "name": name, "version": version, "bom-ref": f"pkg:deb/debian/{name}@{version}",
            "purl": f"pkg:deb/debian/{name}@{version}",
        }
        for name, version in debian
    ]  # fmt: skip
    about = {"type": "container", "name": _OWN, "bom-ref": f"image:{_OWN}"}
    return document | {
        "components": [*document.get("components", []), *components],
        "metadata": document.get("metadata", {}) | {"component": about},
    }
