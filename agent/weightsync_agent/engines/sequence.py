"""The order of a commit for one engine. Pure: the leader runs the steps one at a time, and stops where one fails.

    journal Torn -> pause -> version "torn:V" -> begin -> apply -> end -> flush -> version V -> journal Current
    -> continue -> the name again -> gate

The first commit of an engine's life certifies it: what was applied is read back and compared, and all of that once
more, since an engine may repack its parameters the first time that they are loaded.

An engine in Direct mode goes through the first of these steps before its first writer, and again in the commit, which
has nothing to apply then: begin and end run what the engine does after a load.

A commit starts from the first step always, also after a failure: until the last step the engine is paused, and its
journal says so. The name "torn:V" stands while bytes move, so that an engine that somebody resumes by hand shows it.

A process that takes the place of the one that is committed to answers all these calls as well, with the checkpoint
that it started with. It cannot know the names: so an engine is called V only if it calls itself torn:V, and is asked
for its name once more after the continue, when nothing waits for it.
"""

from enum import Enum

from weightsync_agent.engines.base import Capabilities, PauseMode

FLUSH_SINCE = "0.5.21"  # the first SGLang that can flush while requests wait


class Step(Enum):
    """One step; the value says what has been reached when it is done."""

    JOURNAL_TORN = "whatever happens, the next start takes engine memory for torn"
    PAUSE = "no token is generated"
    SAME_LIFE = "the process that is paused is the one whose parameters were described"
    MARK_TORN = "the engine calls itself torn:V"
    BEGIN = "the engine expects its weights to change"
    APPLY = "every rank's parameters hold V"
    END = "the engine has derived from them what it needs"
    READ_BACK = "what stands in the parameters is the replica, byte for byte"
    FLUSH = "nothing of the old weights is left in the KV cache"
    MARK_CURRENT = "the engine, which called itself torn:V until now, calls itself V"
    JOURNAL_CURRENT = "the next start takes engine memory for V"
    CONTINUE = "tokens are generated"
    CONFIRM = "and from V: what generates them calls itself V"
    GATE = "the pod's readiness gate says so"


def left_out(capabilities: Capabilities, pause_mode: PauseMode) -> dict[Step, str]:
    """The steps that this engine's commit goes without, each with the reason."""
    omitted: dict[Step, str] = {}
    if not capabilities.begin_end:
        omitted[Step.BEGIN] = omitted[Step.END] = "the engine's release has no weight-update sessions"
    if pause_mode == "InPlace":
        omitted[Step.FLUSH] = "requests stopped in place go on with the KV cache that they have"
    if pause_mode == "Abort":
        omitted[Step.FLUSH] = "the pause flushed when the last request was gone, and a paused engine computes nothing"
    return omitted


OPEN_STEPS = (Step.JOURNAL_TORN, Step.PAUSE, Step.SAME_LIFE, Step.MARK_TORN)  # before a writer is let in


def direct_steps(capabilities: Capabilities, pause_mode: PauseMode, *, certified: bool = True) -> tuple[Step, ...]:
    """The steps of a commit of what was written into the parameters themselves. certified: as in commit_steps."""
    omitted = {*left_out(capabilities, pause_mode), Step.APPLY, *([Step.READ_BACK] if certified else [])}
    return tuple(step for step in Step if step not in omitted)


def commit_steps(capabilities: Capabilities, pause_mode: PauseMode, *, certified: bool = True) -> tuple[Step, ...]:
    """The steps in their order. certified: this life of the engine has given back before what was applied."""
    # Who applies from an arena names the process that is meant in that very call.
    omitted = {*left_out(capabilities, pause_mode), Step.SAME_LIFE}
    steps = [step for step in Step if step not in omitted]
    first, last = steps.index(Step.MARK_TORN) + 1, steps.index(Step.READ_BACK)
    applied = steps[first:last] if certified else 2 * steps[first : last + 1]
    return (*steps[:first], *applied, *steps[last + 1 :])


def refusal(capabilities: Capabilities, pause_mode: PauseMode) -> str | None:
    """Why this engine cannot be committed to with that pause mode, None where it can."""
    if pause_mode == "Retract" and not capabilities.flush_with_waiting:
        return (
            f"pauseMode Retract leaves requests waiting, and SGLang before {FLUSH_SINCE} cannot flush its KV cache "
            f"then: they would go on with prefixes of the old weights. Use pauseMode Abort, or SGLang {FLUSH_SINCE}"
        )
    return None
