"""`python3 tools/docs`: build the site into build/docs, strictly. Other words go to mkdocs as they are."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.setup import tools_env  # noqa: E402 - the path comes first
from tools.setup.errors import SetupError  # noqa: E402


def main(words: list[str]) -> int:
    """The exit status of mkdocs; 1 where it cannot be set up."""
    try:
        program = tools_env.prepare(ROOT) / "mkdocs"
    except SetupError as error:
        print(f"the documentation cannot be built: {error}", file=sys.stderr)
        return 1
    # The theme advertises its successor at each start, as if something were wrong.
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [str(program), *(words or ["build", "--quiet"])]
    return subprocess.run(command, cwd=ROOT, env=quiet, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
