"""The page for SGLang users lists every refusal that the code can make, and none that it cannot."""

import ast
import re
from pathlib import Path

from weightsync.hook import HOOK_FILE
from weightsync_agent.engines.base import Capabilities
from weightsync_agent.engines.server_info import parse_server_info, refusals
from weightsync_agent.protocol.engine_leader import NOT_CERTIFIED

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sglang.md").read_text()
ENGINES = ROOT / "agent" / "weightsync_agent" / "engines"
# Of description_problem() and sequence.refusal(): no setting of the server, so they have no name in the code.
FROM_THE_ENGINE = {"repacked", "layout", "contiguous", "pauseMode: Retract"}


def named(heading: str) -> set[str]:
    """What the first column of the table under a heading names."""
    section = PAGE.split(f" {heading}\n", 1)[1]
    section = re.split(r"^#", section, maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def reasons(path: Path, function: str) -> set[str]:
    """First arguments of all calls of ``function``, where they are texts."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    found = [c.args[0] for c in calls if isinstance(c.func, ast.Name) and c.func.id == function and c.args]
    return {node.value for node in found if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_setting_that_is_refused_is_listed() -> None:
    """Those of /server_info by the keys of the check itself."""
    settings = set(refusals(parse_server_info({}), Capabilities(begin_end=False, flush_with_waiting=False)))
    assert named("What is refused") == settings | FROM_THE_ENGINE | {NOT_CERTIFIED}


def test_every_reason_of_the_hook_is_listed() -> None:
    """Those in its source; three of them are made of a state or a field."""
    made = {"NotSealed", "NotFilling", "LayoutMismatch", "GrantMismatch", "RootMismatch", "HookFailed"}
    assert named("What the hook answers") == reasons(HOOK_FILE, "Refusal") | made


def test_every_reason_of_the_adapter_is_listed() -> None:
    """Those with which a call to SGLang, or the reading of a result, can end."""
    paths = [*ENGINES.glob("*.py"), ENGINES.parent / "drivers" / "crew.py"]
    found = {reason for path in paths for reason in reasons(path, "engine_error")}
    assert named("What calls to SGLang can end with") == found
