"""Rank 0's eye on the engines: asks probes, checks answers, keeps what engines were reported current with."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future

from torch import Tensor

from reference.config import ModelConfig
from rl.checker import Answer, Tally, check, check_versions
from rl.engines import Engines
from rl.events import say
from rl.probes import telling
from rl.sampling import probe_question
from rl.task import Task
from rl.versions import Versions

CANDIDATES = 6  # prompts looked at for each that is asked


class Watch:
    """tokens: of a probe's answer; tolerance: see checker.check."""

    def __init__(
        self, config: ModelConfig, base: dict[str, Tensor], task: Task, *, probes: int, tokens: int, tolerance: float
    ) -> None:
        self.versions = Versions(config, base)
        self.tally = Tally()
        self._task, self._probes, self._tokens, self._tolerance = task, probes, tokens, tolerance
        self._asked: list[Future[list[Answer]]] = []
        self._floors: dict[str, int] = {}

    def floors(self) -> Mapping[str, int]:
        """Engine -> number of the version with which it was last reported current. Read by other threads."""
        return self._floors

    def choose(self, step: int) -> Sequence[Sequence[int]]:
        """Prompts for this step's probes: those that tell the newest versions apart, the most telling first."""
        newest = self.versions.newest
        rows = [self.versions.model(number) for number in range(newest, max(newest - 3, -1), -1)]
        candidates = self._task.prompts(step, CANDIDATES * self._probes, "probe")
        return telling([row for row in rows if row is not None], candidates, self._tokens, self._probes)

    def ask(self, engines: Engines, prompts: Iterable[Sequence[int]]) -> None:
        """Send probes; check() looks at their answers later."""
        self._asked += [engines.ask(probe_question(prompt, self._tokens)) for prompt in prompts]

    def current(self, number: int, engines: Iterable[str]) -> None:
        """These engines were reported current with that version. As a new mapping: requests under way keep theirs."""
        self._floors = {**self._floors, **dict.fromkeys(engines, number)}

    def check(self, step: int, *, wait: float = 0.0) -> None:
        """Judge the probes that were answered; with ``wait``, all of them, for at most so many seconds each."""
        asked, self._asked = self._asked, []
        for future in asked:
            if not wait and not future.done():
                self._asked.append(future)
                continue
            for answer in future.result(wait or None):
                verdict = check(answer, self.versions, self._tolerance)
                self.tally.count(answer, verdict)
                self._tell(step, verdict.torn, verdict.stale)

    def see(self, step: int, answers: Iterable[Answer]) -> None:
        """Judge sampled answers by the names of their versions."""
        for answer in answers:
            for span in answer.spans:
                self.versions.seen(span.version)
            verdict = check_versions(answer, self.versions)
            self.tally.count_sampled(verdict)
            self._tell(step, verdict.torn, verdict.stale)

    def _tell(self, step: int, torn: str, stale: str) -> None:
        for kind, sentence in (("torn", torn), ("stale", stale)):
            if sentence:
                say(kind, step=step, what=sentence)
