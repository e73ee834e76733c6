"""What the coordinator says of itself to people: counts, the last sync, the worst offenders. Pure."""

from weightsync.report import WORST, LastSync, Offender, Report
from weightsync_agent.protocol.coordinator import Coordinator
from weightsync_agent.protocol.standing import Known, Standing


def report_of(machine: Coordinator) -> Report:
    """The report as of now."""
    engines = list(machine.engines.values())
    last, sealed = machine.last, machine.sealed
    return Report(
        term=machine.term,
        version=sealed.version.name if sealed else "",
        label=sealed.label if sealed else "",
        published=machine.published,
        current=sum(k.standing is Standing.CURRENT for k in engines),
        behind=sum(k.standing is Standing.BEHIND for k in engines),
        joining=sum(k.standing is Standing.JOINING and not k.failures for k in engines),
        failed=sum(k.failures > 0 for k in engines),
        syncing=machine.sync is not None,
        last_sync=None
        if last is None
        else LastSync(
            version=last.version,
            label=last.label,
            engines=last.engines,
            nbytes=last.nbytes,
            seconds=round(last.seconds, 4),
            pause_seconds_p50=round(last.pause(0.5), 4),
            pause_seconds_max=round(last.pause(1.0), 4),
            routes=last.routes,
        ),
        worst=tuple(_offender(k) for k in sorted(engines, key=_badness) if k.failures or k.reason)[:WORST],
        error_reason=machine.error[0],
        error=machine.error[1][:1024],
    )


def _badness(known: Known) -> tuple[int, str]:
    return -known.failures, known.engine.name


def _offender(known: Known) -> Offender:
    return Offender(engine=known.engine.name, reason=known.reason or "Unknown", message=known.message[:512])
