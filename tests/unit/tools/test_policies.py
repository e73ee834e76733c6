"""kube-router's rules are told from others', and what it runs as is its firewall alone."""

from __future__ import annotations

from pathlib import Path

from tools.cluster import policies

SAVED = """\
-P INPUT ACCEPT
-N KUBE-NWPLCY-DEFAULT
-N KUBE-POD-FW-A
-N KUBE-ROUTER-FORWARD
-N KUBE-FORWARD
-A INPUT -i lo -j ACCEPT
-A FORWARD -m comment --comment "kube-router netpol - X" -j KUBE-ROUTER-FORWARD
-A FORWARD -j KUBE-FORWARD
-A KUBE-ROUTER-FORWARD -d 10.213.0.5/32 -j KUBE-POD-FW-A
"""


def test_rules_of_others_are_left_alone() -> None:
    """Its chains, what is in them and what leads to them; not those of kube-proxy, whose names are alike."""
    found = policies.chain_rules(SAVED.splitlines())
    assert [line.split()[1] for line in found] == [
        "KUBE-NWPLCY-DEFAULT", "KUBE-POD-FW-A", "KUBE-ROUTER-FORWARD", "FORWARD", "KUBE-ROUTER-FORWARD",
    ]  # fmt: skip
    assert not any("KUBE-FORWARD" in line for line in found)


def test_it_routes_nothing_and_proxies_nothing() -> None:
    """The node's own programs do: a second one would undo what they set up."""
    argv = policies.command(Path("/x/kube-router"), Path("/x/config"))
    assert {"--run-firewall=true", "--run-router=false", "--run-service-proxy=false", "--enable-cni=false"} <= {*argv}
