//! Requests that are ready at the same moment travel together: one call of one script for up to 16 locks costs the
//! server a third less for each, and both sides fewer system calls. Nobody waits for company that is not there yet,
//! and a request that is alone takes the straight way.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::{Moment, Name, Request};
use tenure_engine::Answer;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// With fewer requests under way there is no company to be expected.
const COMPANY: usize = 4;

/// The most requests in one call. More would gain little, and keep the server from others for longer than 0.1 ms.
const TOGETHER_MAX: usize = 16;

/// A request that waits for the end of this turn of the scheduler.
pub(crate) struct Fellow {
    pub(crate) name: Name,
    pub(crate) request: Request,
    /// How long it may take, and when that is over.
    pub(crate) limit: Duration,
    pub(crate) deadline: Instant,
    /// When the caller asked.
    pub(crate) asked: Moment,
    /// `None`: it is not as simple as that; it has to travel alone.
    pub(crate) answer: oneshot::Sender<Option<Answer>>,
}

impl Fellow {
    /// It was not sent with the others.
    pub(crate) fn travel_alone(self) {
        let _ = self.answer.send(None);
    }
}

/// Who is under way, and who waits to leave.
#[derive(Default)]
pub(crate) struct Together {
    under_way: AtomicUsize,
    waiting: Mutex<Vec<Fellow>>,
}

impl Together {
    /// One more request is under way, as long as the answer lives.
    pub(crate) fn set_out(&self) -> UnderWay<'_> {
        UnderWay::count(&self.under_way)
    }

    /// Is it worth looking for company for this request?
    pub(crate) fn suits(&self, request: &Request) -> bool {
        let simple = matches!(request, Request::Ask { not_after: None, .. } | Request::Release { .. });
        simple && self.under_way.load(Ordering::Relaxed) >= COMPANY
    }

    /// True: this is the first, and somebody has to see to their departure.
    pub(crate) fn join(&self, fellow: Fellow) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(fellow);
        waiting.len() == 1
    }

    /// All who wait, in groups that leave one after the other. Who has less time than others does not make them late.
    pub(crate) fn depart(&self) -> Vec<Vec<Fellow>> {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        let mut groups: Vec<Vec<Fellow>> = Vec::with_capacity(waiting.len().div_ceil(TOGETHER_MAX));
        for fellow in waiting {
            match groups.last_mut() {
                Some(group) if group.len() < TOGETHER_MAX && group[0].limit == fellow.limit => {
                    group.push(fellow);
                }
                _ => groups.push(vec![fellow]),
            }
        }
        groups
    }
}

/// One more is under way, as long as this lives.
pub(crate) struct UnderWay<'a>(&'a AtomicUsize);

impl<'a> UnderWay<'a> {
    pub(crate) fn count(under_way: &'a AtomicUsize) -> Self {
        under_way.fetch_add(1, Ordering::Relaxed);
        Self(under_way)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
