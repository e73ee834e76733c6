"""All cases, in the order in which they are put to an engine."""

# Importing a file puts its cases into the table.
from tests.contract import cases_api, cases_fatal, cases_hook, cases_pause
from tests.contract.table import CASES, FATAL

LAST = "a checkpoint that is not there"
CASES[LAST] = CASES.pop(LAST)  # an engine that takes it badly has answered all the others

__all__ = ["CASES", "FATAL", "cases_api", "cases_fatal", "cases_hook", "cases_pause"]
