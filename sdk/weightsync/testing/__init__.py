"""Fakes for tests of a training loop: an agent that serves a Publisher without Kubernetes, Mooncake or an engine.

program = plain_program({"embed.weight": ("float32", (8, 4))})
with FakeAgent(directory, [program]) as agent, Publisher(0, 1, directory=directory) as publisher:
    publisher.publish(model.state_dict()).raise_on_failure()
agent.published[0].parameter("embed.weight")  # the bytes that an engine would hold
"""

from weightsync.testing.fake_agent import FakeAgent
from weightsync.testing.programs import plain_program
from weightsync.testing.published import Published

__all__ = ["FakeAgent", "Published", "plain_program"]
