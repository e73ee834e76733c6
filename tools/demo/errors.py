"""The one error of the demo: a sentence that says what did not happen and what to do."""


class DemoError(Exception):
    """The demo cannot go on."""
