"""Every condition reason and event reason of the operator, with what it means. Nothing else."""

from typing import Final

# SourcesReady
NO_SOURCES: Final = "NoSources"  # the trainer selector matches no pod
SOURCES_NOT_READY: Final = "SourcesNotReady"  # pods are there, but no agent of theirs has a Publisher yet
SOURCES_DISAGREE: Final = "SourcesDisagree"  # ranks announce different world sizes or numbers of stages
RANKS_DUPLICATED: Final = "RanksDuplicated"  # two pods announce the same rank
RANKS_MISSING: Final = "RanksMissing"  # the world is larger than the ranks that are there
STAGES_MISSING: Final = "StagesMissing"  # every rank is there, but a pipeline stage has none
SOURCES_ANNOUNCED: Final = "SourcesAnnounced"  # all is well

# PlanReady
SOURCES_MISSING: Final = "SourcesMissing"  # no plan without sources for each stage; the last one stays
NO_TARGETS: Final = "NoTargets"  # the rollout selector matches no pod
TARGETS_NOT_READY: Final = "TargetsNotReady"  # pods are there, but none can be served yet
PLAN_REFUSED: Final = "PlanRefused"  # the API refuses what was planned, or nothing can be planned of what is there
ORDERED_STARTUP: Final = "OrderedStartup"  # an engine's other pods are made only once the first is Ready
PLANNED: Final = "Planned"  # each engine that can take part has its routes

# Degraded
PODS_MATCHED_TWICE: Final = "PodsMatchedTwice"  # another WeightSync, or both selectors, match the same pod
LAYOUTS_DIFFER: Final = "LayoutsDiffer"  # engines of one rollout hold different parameters
ENGINE_INCONSISTENT: Final = "EngineInconsistent"  # pods of one engine contradict one another, or lack its label
SOURCES_FULL: Final = "SourcesFull"  # no trainer pod has room for one more replica
ENGINE_REFUSED: Final = "EngineRefused"  # an agent says that its engine cannot be fed
ANNOUNCEMENT_UNREADABLE: Final = "AnnouncementUnreadable"  # an annotation cannot be read: versions differ
ENGINES_FAILED: Final = "EnginesFailed"  # the coordinator could not bring engines to a version
ENGINES_BEHIND: Final = "EnginesBehind"  # engines serve an older version and are being repaired
ALL_SERVED: Final = "AllServed"  # nothing of that

# Engines in the status' list
ENGINE_INCOMPLETE: Final = "EngineIncomplete"  # pods or ranks of an engine of several pods are not there yet

# Progressing
SYNCING: Final = "Syncing"  # a version is on its way
ENGINES_JOINING: Final = "EnginesJoining"  # engines start, or receive their first version
IDLE: Final = "Idle"  # neither

# RDMAReady
NO_PLAN: Final = "NoPlan"  # who takes part is not known yet
RDMA_NOT_WANTED: Final = "NotWanted"  # spec.transfer.protocol is TCP
NO_DEVICE: Final = "NoDevice"  # pods without a device: over TCP where that is allowed, else refused
DEVICES_UNKNOWN: Final = "DevicesUnknown"  # agents do not say what devices they have
OVER_TCP: Final = "OverTCP"  # all have devices, and the last sync did not use them everywhere
DEVICES_READY: Final = "DevicesReady"  # every pod that takes part has one

# Ready, besides the reason of whatever makes it false
SUSPENDED: Final = "Suspended"  # spec.suspend
NOTHING_PUBLISHED: Final = "NothingPublished"  # all is in place; the trainer has not published
SYNC_FAILED: Final = "SyncFailed"  # the coordinator reports an error without a reason of its own
IN_SYNC: Final = "InSync"  # a version was published, and nothing stands in the way of the next

# Events that are no condition
COORDINATOR_CHANGED: Final = "CoordinatorChanged"
