"""Grants under which this agent starts no write any more: their targets were promised that. Shared by its ranks."""

MOST = 4096  # that are remembered: an order for an older one has long been lost


class VoidGrants:
    """Oldest first."""

    def __init__(self) -> None:
        self._grants: dict[str, None] = {}

    def add(self, grant: str) -> None:
        """From here on."""
        self._grants[grant] = None
        while len(self._grants) > MOST:
            self._grants.pop(next(iter(self._grants)))

    def __contains__(self, grant: object) -> bool:
        return grant in self._grants
