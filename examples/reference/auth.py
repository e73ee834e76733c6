"""Who may call what, as SGLang decides it. Pure.

Probes are open. Control endpoints take the admin key if one is set, else the API key, else are open; the rest
takes the API key if one is set, and the admin key opens none of it.
"""

import secrets

OPEN = ("/health", "/ready", "/metrics")
CONTROL = frozenset(
    {
        "/abort_request",
        "/begin_weight_update",
        "/continue_generation",
        "/end_weight_update",
        "/flush_cache",
        "/pause_generation",
        "/update_weight_version",
        "/update_weights_from_disk",
        "/update_weights_from_tensor",
        "/weights_checker",
    }
)


def allowed(
    path: str, authorization: str | None, api_key: str | None, admin_api_key: str | None, *, routed: bool = True
) -> bool:
    """Whether a request with that Authorization header may call that path.

    routed: there is such an endpoint for the request's method; without one it is no control call.
    """
    if path.startswith(OPEN):
        return True
    key = (admin_api_key or api_key) if routed and path in CONTROL else api_key
    if not key:
        return True
    scheme, _, token = (authorization or "").partition(" ")
    return scheme.lower() == "bearer" and secrets.compare_digest(token.encode(), key.encode())
