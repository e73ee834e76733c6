"""What tests between real processes share."""

from tests.build.small_model import checkpoint

__all__ = ["checkpoint"]
