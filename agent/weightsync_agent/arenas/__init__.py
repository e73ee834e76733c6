"""Which arenas a source holds, how big they may be, and which of them may be filled."""
