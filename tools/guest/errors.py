"""The one error of the guests: a sentence that says what is missing and what to do."""


class GuestError(Exception):
    """A guest cannot be made, or died; the message says which, and holds the end of its console."""
