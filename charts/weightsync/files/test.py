"""`helm test`: is an operator at work, and does the API server take a WeightSync? Says what is wrong, and ends with 1.

Standard library only. It waits for the Lease, since a first operator may still be starting.
"""

import datetime
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
NAMESPACE, LEASE = os.environ["POD_NAMESPACE"], os.environ["LEASE"]
WAIT_SECONDS, FRESH_SECONDS = 60, 60
SPEC = {
    "trainer": {"selector": {"matchLabels": {"app": "trainer"}}},
    "rollout": {"selector": {"matchLabels": {"app": "rollout"}}},
}


def call(path, body=None):
    """The answer's document; HTTPError where the API server refuses."""
    host = f"{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    with open(f"{ACCOUNT}/token", encoding="utf-8") as file:
        headers = {"Authorization": f"Bearer {file.read()}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"https://{host}{path}", data, headers)
    context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    with urllib.request.urlopen(request, context=context, timeout=10) as answer:
        return json.load(answer)


def works():
    """"" while an operator renews the Lease, else what is wrong."""
    try:
        spec = call(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE}")["spec"]
    except urllib.error.HTTPError as error:
        return f"lease {NAMESPACE}/{LEASE} cannot be read: {error}: no operator has started yet"
    renewed = datetime.datetime.fromisoformat(spec["renewTime"].replace("Z", "+00:00"))
    age = (datetime.datetime.now(datetime.timezone.utc) - renewed).total_seconds()
    if age > FRESH_SECONDS:
        return f"{spec.get('holderIdentity') or 'nobody'} renewed lease {NAMESPACE}/{LEASE} {age:.0f} s ago"
    return "" if spec.get("holderIdentity") else f"nobody holds lease {NAMESPACE}/{LEASE}"


def taken():
    """"" where a WeightSync would be taken; nothing is kept."""
    path = f"/apis/weightsync.io/v1alpha1/namespaces/{NAMESPACE}/weightsyncs?dryRun=All"
    body = {"apiVersion": "weightsync.io/v1alpha1", "kind": "WeightSync", "metadata": {"name": "test"}, "spec": SPEC}
    try:
        call(path, body)
    except urllib.error.HTTPError as error:
        return f"a WeightSync is refused: {error.code} {error.read().decode(errors='replace')[:500]}"
    return ""


end = time.monotonic() + WAIT_SECONDS
while (wrong := works()) and time.monotonic() < end:
    time.sleep(1)
wrong = wrong or taken()
print(wrong or "an operator works, and WeightSyncs are taken")
sys.exit(1 if wrong else 0)
