use std::error::Error;

use tenure_core::Outcome;

/// What is known about a request that got no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// It may have run, may run later, or never.
    Unknown,
    /// It did not run and never will. Another try may.
    NotRun,
    /// It did not run, and another try would end the same way until somebody changes something.
    Refused,
}

/// A request without a reply: what happened, why, and what to do next.
#[derive(Debug, thiserror::Error)]
#[error("{what}{}{hint}", if hint.is_empty() { "" } else { "; " })]
pub struct Fault {
    /// What it means for the request.
    pub kind: FaultKind,
    /// What happened, without secrets.
    pub what: String,
    /// What to do about it; may be empty.
    pub hint: &'static str,
    /// Below it.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl Fault {
    /// The request may have run.
    pub fn unknown(what: impl Into<String>) -> Self {
        Self { kind: FaultKind::Unknown, what: what.into(), hint: "", source: None }
    }

    /// The request did not run; another try may.
    pub fn not_run(what: impl Into<String>) -> Self {
        Self { kind: FaultKind::NotRun, what: what.into(), hint: "", source: None }
    }

    /// The request did not run, and another try is no use.
    pub fn refused(what: impl Into<String>) -> Self {
        Self { kind: FaultKind::Refused, what: what.into(), hint: "", source: None }
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(mut self, hint: &'static str) -> Self {
        self.hint = hint;
        self
    }

    /// Adds the error below.
    #[must_use]
    pub fn source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What a claim has to know of it.
    pub fn outcome(&self) -> Outcome {
        match self.kind {
            FaultKind::Unknown => Outcome::Unknown,
            FaultKind::NotRun => Outcome::NotRun,
            FaultKind::Refused => Outcome::Refused,
        }
    }
}
