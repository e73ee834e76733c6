"""What the documentation shows is what the code reads."""

import re
from pathlib import Path

import pytest
import yaml

from weightsync.announcement import Announcement
from weightsync.api.v1alpha1.slice import SliceSpec
from weightsync.api.v1alpha1.weightsync import WeightSyncSpec
from weightsync.convert.program import CopyProgram
from weightsync.plan import PlanFile
from weightsync.records import Record
from weightsync.wire.v1 import AgentStatus, Grant, GrantRequest, Problem
from weightsync_operator.inventory import Inventory

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
MODELS: dict[str, type[Record]] = {
    "announcement": Announcement, "slice": SliceSpec, "planfile": PlanFile, "problem": Problem,
    "grantrequest": GrantRequest, "grant": Grant, "status": AgentStatus, "inventory": Inventory,
    "program": CopyProgram,
}  # fmt: skip


def blocks(path: str) -> list[tuple[str, str, str]]:
    return [(m[1], m[2] or "", m[3]) for m in BLOCK.finditer((ROOT / path).read_text())]


@pytest.mark.parametrize(
    ("kind", "text"), [(k, t) for _, k, t in blocks("docs/formats.md") if k], ids=lambda x: x[:14]
)
def test_an_example_is_read_by_its_model_without_a_key_left_over(kind: str, text: str) -> None:
    """The model parses it, and writes every key of the example back: none is misspelt."""
    document = yaml.safe_load(text)
    model = MODELS[kind].model_validate(document)
    written = model.model_dump(mode="json")
    assert set(document) <= set(written)


def test_the_examples_resource_is_valid() -> None:
    """The WeightSync of the page parses, with nothing unknown."""
    (text,) = (text for language, kind, text in blocks("docs/formats.md") if language == "yaml" and not kind)
    document = yaml.safe_load(text)
    assert document["kind"] == "WeightSync"
    WeightSyncSpec.model_validate(document["spec"])


def test_pages_link_to_files_that_exist() -> None:
    """Every relative link of README and docs leads somewhere."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_python_in_the_docs_compiles() -> None:
    """Snippets are code, not prose."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        for language, _, text in blocks(str(page.relative_to(ROOT))):
            if language == "python":
                compile(text, str(page), "exec")
