"""The one error of the set-up: a sentence that says what is missing and what to do."""


class SetupError(Exception):
    """Set-up cannot go on; the message says what is wrong, where, and what to do."""
