//! What one seed is about. Each seed switches some faults off and others far up: a history with a little of everything
//! finds less than many with a lot of something (Groce et al., swarm testing, 2012).

use crate::random::Random;

/// What a task can do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deed {
    Acquire,
    TryAcquire,
    AcquireNow,
    With,
    Nest,
    Inspect,
    List,
    AskToStop,
    Close,
    Rest,
}

pub(crate) const DEEDS: [Deed; 10] = [
    Deed::Acquire,
    Deed::TryAcquire,
    Deed::AcquireNow,
    Deed::With,
    Deed::Nest,
    Deed::Inspect,
    Deed::List,
    Deed::AskToStop,
    Deed::Close,
    Deed::Rest,
];

#[derive(Debug)]
pub(crate) struct Swarm {
    pub(crate) processes: u64,
    pub(crate) tasks: u64,
    pub(crate) locks: u64,
    /// How long faults happen.
    pub(crate) chaos_ms: u64,
    /// The store is on this host: one clock, no guard time, and it sees which processes live.
    pub(crate) near: bool,
    /// Answers come in the very poll that asks, as those of a store in memory.
    pub(crate) instant: bool,
    pub(crate) latency_ms: u64,
    /// Percent of requests that take about as long as they may.
    pub(crate) slow: u64,
    /// … that arrive after their sender has given them up.
    pub(crate) stuck: u64,
    pub(crate) lost_requests: u64,
    pub(crate) lost_replies: u64,
    pub(crate) not_run: u64,
    pub(crate) refused: u64,
    /// An ask that was given up may arrive after later requests, until its window is over.
    pub(crate) asks_overtake: bool,
    pub(crate) lost_letters: u64,
    pub(crate) late_letters: u64,
    pub(crate) doubled_letters: u64,
    /// The store takes processes that are gone or cut off for listening.
    pub(crate) deaf_look_alive: bool,
    pub(crate) drift: bool,
    /// Some wall clocks are wrong.
    pub(crate) wrong_clocks: bool,
    pub(crate) crashes: u64,
    pub(crate) stops: u64,
    pub(crate) cuts: u64,
    pub(crate) forgets: u64,
    /// Percent of futures that are dropped before they are done.
    pub(crate) cancel: u64,
    pub(crate) ttls_ms: [u64; 3],
    pub(crate) deeds: [u64; DEEDS.len()],
}

impl Swarm {
    pub(crate) fn draw(random: &mut Random) -> Self {
        // One in a hundred strangers: nothing goes wrong in some seeds.
        let calm = random.chance(5);
        let mut often = |most: u64| match random.below(4) {
            _ if calm => 0,
            0 | 1 => 0,
            2 => random.within(1, (most / 4).max(1)),
            _ => random.within(1, most),
        };
        let (slow, stuck, lost_requests, lost_replies) = (often(40), often(30), often(40), often(40));
        let (not_run, refused) = (often(30), often(5));
        let (lost_letters, late_letters, doubled_letters) = (often(100), often(100), often(50));
        let (crashes, stops, cuts, forgets) = (often(3), often(4), often(4), often(3));
        let cancel = often(80);
        let near = random.chance(30);
        let mut deeds = [0; DEEDS.len()];
        for (at, weight) in [30, 10, 10, 20, 15, 4, 3, 6, 1, 4].into_iter().enumerate() {
            deeds[at] = if random.chance(70) { random.within(1, weight) } else { 0 };
        }
        if deeds[..5].iter().all(|weight| *weight == 0) {
            deeds[0] = 1;
        }
        Self {
            processes: random.within(1, 3),
            tasks: random.within(1, 3),
            locks: random.within(1, 3).min(random.within(1, 3)),
            chaos_ms: random.within(2_000, 12_000),
            near,
            instant: random.chance(10),
            latency_ms: random.pick(&[0, 1, 5, 30, 200]),
            slow,
            stuck,
            lost_requests,
            lost_replies,
            not_run,
            refused,
            asks_overtake: random.chance(50),
            lost_letters,
            late_letters,
            doubled_letters,
            deaf_look_alive: random.chance(50),
            drift: !near && random.chance(50),
            wrong_clocks: !near && random.chance(5),
            crashes,
            stops,
            cuts,
            forgets: if random.chance(30) { forgets } else { 0 },
            cancel,
            ttls_ms: std::array::from_fn(|_| {
                random.pick(&[100, 150, 300, 700, 1_500, 4_000, 12_000, 30_000])
            }),
            deeds,
        }
    }
}
