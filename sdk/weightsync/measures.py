"""The form of every benchmark's, fault trial's and simulation's report: figures, and which bounds hold. Pure."""

from typing import Annotated, Literal

from pydantic import Field

from weightsync.records import Record


class Measure(Record):
    """One figure. bound: what it must reach (``better`` higher) or not exceed (lower); None where it is only told.

    Bounds are ratios and counts; seconds and speeds depend on the machine and are told only. how: the conditions.
    """

    name: Annotated[str, Field(min_length=1)]
    value: Annotated[float, Field(allow_inf_nan=False)]
    unit: str
    bound: Annotated[float, Field(allow_inf_nan=False)] | None = None
    better: Literal["higher", "lower"]
    how: str

    @property
    def holds(self) -> bool:
        """Whether the bound is kept; a figure without one always holds."""
        if self.bound is None:
            return True
        return self.value >= self.bound if self.better == "higher" else self.value <= self.bound


class Measures(Record):
    """A report file. environment: the machine and the packages that the figures belong to."""

    environment: dict[str, str | int | float]
    measures: tuple[Measure, ...]

    @property
    def broken(self) -> tuple[Measure, ...]:
        """The measures whose bound is broken."""
        return tuple(measure for measure in self.measures if not measure.holds)
