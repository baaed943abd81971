//! What the library tells operators: events through `tracing`, and counters and histograms through the `metrics`
//! facade where that feature is on. Labels never carry lock names: their number has no bound.

use tenure_core::{End, HolderId, Lost, Name, Notice};
use tenure_engine::FaultKind;

/// A claim told its caller something `ms` after it began to wait or to hold.
pub(crate) fn notice(name: &Name, holder: HolderId, ms: u64, notice: &Notice) {
    match notice {
        Notice::Granted { token } => {
            tracing::debug!(lock = %name, %holder, fence = token.0, waited_ms = ms, "acquired");
            record("tenure_waited_seconds", ms);
        }
        Notice::AtRisk => {
            tracing::warn!(lock = %name, %holder, "a renewal failed or is late");
            count("tenure_at_risk_total", "");
        }
        Notice::Lost(lost) => {
            tracing::error!(lock = %name, %holder, held_ms = ms, ?lost, "lost");
            count("tenure_lost_total", reason(lost));
        }
        Notice::Ended(end) => {
            tracing::debug!(lock = %name, %holder, ms, ?end, "ended");
            count("tenure_ended_total", outcome(end));
            if matches!(end, End::Released { .. }) {
                record("tenure_held_seconds", ms);
            }
        }
    }
}

/// A request got no answer.
pub(crate) fn fault(kind: FaultKind) {
    count(
        "tenure_faults_total",
        match kind {
            FaultKind::Unknown => "unknown",
            FaultKind::NotRun => "not_run",
            FaultKind::Refused => "refused",
        },
    );
}

/// A batch of renewals and other errands came back after `ms`.
pub(crate) fn batch(size: usize, ms: u64) {
    tracing::trace!(size, ms, "batch");
    record("tenure_batch_seconds", ms);
}

fn reason(lost: &Lost) -> &'static str {
    match lost {
        Lost::Expired => "expired",
        Lost::Taken => "taken",
        Lost::Asked { .. } => "asked",
    }
}

fn outcome(end: &End) -> &'static str {
    match end {
        End::Released { confirmed: true } => "released",
        End::Released { confirmed: false } => "released_unconfirmed",
        End::NotHeld => "not_held",
        End::ReleaseUnknown { .. } => "release_unknown",
        End::Busy(_) => "busy",
        End::WaitElapsed(_) => "wait_elapsed",
        End::Full => "full",
        End::Unreachable => "unreachable",
        End::Refused => "refused",
        End::Cancelled => "cancelled",
    }
}

#[cfg(feature = "metrics")]
fn record(name: &'static str, ms: u64) {
    metrics::histogram!(name).record(ms as f64 / 1000.0);
}

#[cfg(feature = "metrics")]
fn count(name: &'static str, label: &'static str) {
    metrics::counter!(name, "kind" => label).increment(1);
}

#[cfg(not(feature = "metrics"))]
fn record(_: &'static str, _: u64) {}

#[cfg(not(feature = "metrics"))]
fn count(_: &'static str, _: &'static str) {}
