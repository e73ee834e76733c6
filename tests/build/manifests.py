"""Objects of the API as a user or an agent writes them."""

import json
from typing import Any

from weightsync.announcement import Announcement
from weightsync.report import Report

Json = dict[str, Any]


def weightsync(name: str = "policy", trains: str = "trainer", serves: str = "rollout", **spec: Any) -> Json:
    """The least that is valid: two selectors by the label app. spec: more fields, or parts to put in their place."""
    base = {
        "trainer": {"selector": {"matchLabels": {"app": trains}}},
        "rollout": {"selector": {"matchLabels": {"app": serves}}},
    }
    return {
        "apiVersion": "weightsync.io/v1alpha1",
        "kind": "WeightSync",
        "metadata": {"name": name},
        "spec": base | spec,
    }


def pod(name: str, app: str, **labels: str) -> Json:
    """A pod that no node will run."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": app, **labels}},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }


def said(uid: str, announcement: Announcement) -> Json:
    """What an agent applies to pods/NAME/status."""
    text = announcement.model_dump_json()
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"uid": uid, "annotations": {"weightsync.io/agent": text}},
    }


def reported(uid: str, report: Report) -> Json:
    """What a coordinator applies besides."""
    text = json.dumps(report.model_dump(mode="json"))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"uid": uid, "annotations": {"weightsync.io/report": text}},
    }
