"""Every label, annotation, condition, reason, file and metric name that more than one part uses. Nothing else."""

from typing import Final

VERSION: Final = "0.1.0"  # of all packages; pyproject.toml reads it here

GROUP: Final = "weightsync.io"
API_VERSION: Final = f"{GROUP}/v1alpha1"
KIND: Final = "WeightSync"
SLICE_KIND: Final = "WeightSyncSlice"
PLURAL: Final = "weightsyncs"
SLICE_PLURAL: Final = "weightsyncslices"

# On pods.
ANNOUNCEMENT: Final = f"{GROUP}/agent"  # annotation: what the agent says of itself (announcement.py)
REPORT: Final = f"{GROUP}/report"  # annotation: the coordinator's report of the last sync (report.py)
GATE: Final = f"{GROUP}/WeightsCurrent"  # readiness gate and pod condition
ENGINE_PODS: Final = f"{GROUP}/engine-pods"  # annotation of the user's template: how many pods are one engine

# On slices: which WeightSync they belong to.
OWNER_LABEL: Final = f"{GROUP}/weightsync"

# Field managers of server-side applies: one per writer, so that no writer drops another's fields.
MANAGER_OPERATOR: Final = "weightsync-operator"
MANAGER_AGENT: Final = "weightsync-agent"  # annotation ANNOUNCEMENT and condition GATE
MANAGER_REPORT: Final = "weightsync-report"  # annotation REPORT

# Token audience with which agents know one another.
AUDIENCE: Final = "weightsync"

# Conditions of a WeightSync.
READY: Final = "Ready"
SOURCES_READY: Final = "SourcesReady"
PLAN_READY: Final = "PlanReady"
PROGRESSING: Final = "Progressing"
DEGRADED: Final = "Degraded"
RDMA_READY: Final = "RDMAReady"

# The shared volume (emptyDir, medium Memory) and what lies in it.
DIRECTORY: Final = "/dev/weightsync"
DIRECTORY_ENV: Final = "WEIGHTSYNC_DIR"
FILL_THREADS_ENV: Final = "WEIGHTSYNC_FILL_THREADS"  # the trainer's: threads that fill replicas (cores.py)
SOCKET: Final = "agent.sock"
ARENAS: Final = "arenas"
LAYOUTS: Final = "layouts"  # rank-<r>.json: the rank's copy program, its layout inside (convert/program.py)
HOOK: Final = "hook"  # request-<rank>.json, result-<rank>.json
PYTHON: Final = "python"  # weightsync_hook.py and the package, for the engine's PYTHONPATH
JOURNAL: Final = "journal"

# The function that SGLang calls in each rank's process (--custom-weight-loader and load_format).
HOOK_LOADER: Final = "weightsync_hook.load"

# The agent's own API.
AGENT_PORT: Final = 8960
