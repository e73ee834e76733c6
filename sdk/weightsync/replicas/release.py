"""Which release of the engine is installed here, found out without loading it."""

from importlib import metadata

from weightsync.errors import InputError

PACKAGE = "sglang"


def release() -> str:
    """SGLang's version. Raises InputError where it is not installed."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        raise InputError(
            "SGLang cannot be imported here: run this in the engine's image, or where its release is installed"
        ) from None
