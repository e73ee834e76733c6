"""Names of stages: all meet once, whoever comes anew opens another meeting, and nobody waits for ever."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weightsync.errors import CoverageError
from weightsync.testing.programs import plain_program
from weightsync.wire.v1 import NamesRequest, WriterId
from weightsync_agent.drivers.naming import Naming

Run = Callable[..., Any]
PROGRAM = plain_program({"a": ("float32", (4,)), "b": ("float32", (4,))})


def ask(naming: Naming, stage: int, names: str, stages: set[int]) -> Any:
    request = NamesRequest(
        term=1, writer=WriterId(uid="u", rank=stage), stage=stage, program=PROGRAM.digest, names=tuple(names)
    )
    return naming.add(request, PROGRAM, stages, 10.0)


def test_all_stages_meet_and_a_tied_tensor_belongs_to_the_lowest(in_virtual_time: Run) -> None:
    """The first waits for the second."""

    async def main() -> None:
        naming = Naming()
        both: Any = await asyncio.gather(ask(naming, 1, "ab", {0, 1}), ask(naming, 0, "a", {0, 1}))
        assert both == [frozenset("b"), frozenset("a")]
        assert await ask(naming, 1, "ab", {0, 1}) == frozenset("b")

    in_virtual_time(main())


def test_a_stage_with_other_names_opens_a_new_meeting(in_virtual_time: Run) -> None:
    """Its trainer restarted: the others tell theirs again."""

    async def main() -> None:
        naming = Naming()
        await asyncio.gather(ask(naming, 1, "ab", {0, 1}), ask(naming, 0, "a", {0, 1}))
        both: Any = await asyncio.gather(ask(naming, 0, "ab", {0, 1}), ask(naming, 1, "ab", {0, 1}))
        assert both == [frozenset("ab"), frozenset()]

    in_virtual_time(main())


def test_a_stage_that_the_last_meeting_did_not_know_opens_a_new_one(in_virtual_time: Run) -> None:
    """Stage 0 was alone in the plan; now stage 1 comes, and both meet."""

    async def main() -> None:
        naming = Naming()
        assert await ask(naming, 0, "ab", {0}) == frozenset("ab")
        both: Any = await asyncio.gather(ask(naming, 1, "b", {0, 1}), ask(naming, 0, "ab", {0, 1}))
        assert both == [frozenset(), frozenset("ab")]

    in_virtual_time(main())


def test_what_lacks_is_named_and_the_next_meeting_is_new(in_virtual_time: Run) -> None:
    """A tensor that nobody has, for all alike; a stage that never comes, by its number."""

    async def main() -> None:
        naming = Naming()
        both: Any = await asyncio.gather(
            ask(naming, 0, "a", {0, 1}), ask(naming, 1, "a", {0, 1}), return_exceptions=True
        )
        assert [type(error) for error in both] == [CoverageError, CoverageError]
        with pytest.raises(CoverageError, match=r"stages \[1\] did not tell"):
            await ask(naming, 0, "ab", {0, 1})
        assert await ask(naming, 1, "b", {0, 1}) == frozenset()

    in_virtual_time(main())
