"""Whole lists, page by page, each object turned into its record before the next page comes."""

from collections.abc import Callable
from typing import TypeVar

from weightsync_operator.kube.client import Json, Kube
from weightsync_operator.observe import version

PAGE = 500

Value = TypeVar("Value")
Listed = tuple[int, dict[str, tuple[int, Value]]]


async def everything(
    kube: Kube, path: str, record: Callable[[Json], Value], *, selector: str = "", accept: str = "application/json"
) -> Listed[Value]:
    """The list's resource version, and by uid each object's version and record."""
    found: dict[str, tuple[int, Value]] = {}
    query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
    while True:
        page = await kube.get(path, query, accept)
        for raw in page.get("items") or []:  # null in an empty list of metadata
            found[raw["metadata"]["uid"]] = (version(raw), record(raw))
        token = page["metadata"].get("continue", "")
        if not token:
            return version(page), found
        query["continue"] = token
