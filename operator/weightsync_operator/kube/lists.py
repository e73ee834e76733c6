"""Whole lists, page by page, each object turned into its record before the next page comes."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from weightsync_operator.kube.client import Json, Kube
from weightsync_operator.observe import version

PAGE = 500

Value = TypeVar("Value")
Listed = tuple[int, dict[str, tuple[int, Value]]]


async def everything(
    kube: Kube,
    lists: Iterable[str],
    record: Callable[[Json], Value],
    *,
    selector: str = "",
    accept: str = "application/json",
) -> Listed[Value]:
    """The lists' resource version, and by uid each object's version and record.

    lists: paths, one for each namespace or one for all. Of several the oldest version counts: what any of them
    could not know yet must not be taken for gone.
    """
    found: dict[str, tuple[int, Value]] = {}
    versions = [await _one(kube, path, record, found, selector=selector, accept=accept) for path in lists]
    return min(versions), found


async def _one(
    kube: Kube,
    path: str,
    record: Callable[[Json], Value],
    found: dict[str, tuple[int, Value]],
    *,
    selector: str,
    accept: str,
) -> int:
    query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
    while True:
        page = await kube.get(path, query, accept)
        for raw in page.get("items") or []:  # null in an empty list of metadata
            found[raw["metadata"]["uid"]] = (version(raw), record(raw))
        token = page["metadata"].get("continue", "")
        if not token:
            return version(page)
        query["continue"] = token
