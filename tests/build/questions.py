"""A running Prometheus, and what the chart's dashboard and alerts ask it."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

TRIES, SECONDS = 4, 15.0  # a deadline that a busy machine can miss says nothing


@dataclass(frozen=True)
class Question:
    """A query by where it stands. bound: what an alert compares it with; "" in a dashboard."""

    title: str
    expression: str
    bound: str = ""


class Prometheus:
    """Asked over its API. address: HOST:PORT."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}"

    def ready(self) -> bool:
        """Whether it answers yet."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=2) as answer:  # noqa: S310 - http, ours
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[Json]:
        """The instant vector; a query that Prometheus refuses fails the test with its words."""
        found: list[Json] = self._get("query", query=expression)["data"]["result"]
        return found

    def names(self) -> set[str]:
        """Every metric name that was scraped."""
        return set(self._get("label/__name__/values")["data"])

    def up(self) -> dict[tuple[str, str, str], bool]:
        """Whether a target's last scrape was answered: by namespace, pod and container."""
        found = [(one["metric"], one["value"][1] == "1") for one in self.query("up")]
        return {(of["namespace"], of["pod"], of["container"]): answered for of, answered in found}

    def answers(self, expression: str) -> bool:
        """Whether there is a value, and one that is a number: a quantile of nothing is none."""
        return any(found["value"][1] != "NaN" for found in self.query(expression))

    def _get(self, path: str, **query: str) -> Any:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        for tries_left in reversed(range(TRIES)):
            try:
                with urllib.request.urlopen(url, timeout=SECONDS) as answer:  # noqa: S310 - http, ours
                    return json.loads(answer.read())
            except TimeoutError:  # on a busy machine, or while rules of the network are written anew
                if not tries_left:
                    raise
        raise AssertionError("no try at all")


def of_dashboard(dashboard: Json, namespace: str, window: str) -> list[Question]:
    """Every query of its panels. namespace: the choice, a pattern; window: Grafana's interval of rates."""
    return [
        Question(panel["title"], asked.replace("$namespace", namespace).replace("$__rate_interval", window))
        for panel in dashboard["panels"]
        for asked in [target["expr"] for target in panel.get("targets", [])]
    ]


def of_choice(dashboard: Json) -> tuple[str, str]:
    """Metric and label whose values fill the dashboard's choice: without them every panel would be empty."""
    (query,) = (one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query")
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
    assert asked is not None, query
    return asked[1], asked[2]


def of_alerts(document: Json) -> list[Question]:
    """Every alert's query without its last comparison: it has a value also while all is well."""
    found = []
    for rule in [rule for group in document["groups"] for rule in group["rules"]]:
        query, operator, bound = rule["expr"].rsplit(" ", 2)
        assert operator in ("<", ">"), rule
        assert float(bound) >= 0, rule
        found.append(Question(rule["alert"], query, f"{operator} {bound}"))
    return found
