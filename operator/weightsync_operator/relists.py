"""When kopf lists a kind anew: then its watch could not go on, and what vanished meanwhile nobody tells. Pure."""


class Relists:
    """spaced: each namespace is listed and watched by itself, instead of all at once."""

    def __init__(self, *, spaced: bool) -> None:
        self._spaced = spaced
        self._listed: dict[tuple[str, str], set[str]] = {}

    def listed(self, kind: str, namespace: str, uid: str) -> bool:
        """An object was told of as part of a list. True for the first by which that list is known for another one.

        A list never names an object twice, so one that comes again is of the next list.
        """
        seen = self._listed.setdefault((kind, namespace if self._spaced else ""), set())
        again = uid in seen
        if again:
            seen.clear()
        seen.add(uid)
        return again
