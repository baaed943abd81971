//! The one list of cases. An engine passes it, or it is no engine of Tenure.

use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use tokio::time::timeout;

use crate::subject::{Concerns, Maker, Store};
use crate::{cancel, crash, exclusion, lease, loss, messages, order, redis, session, wire};

/// The longest that a case may take.
const CASE_LIMIT: Duration = Duration::from_secs(60);

/// How many cases run at a time: most of their time they wait, each over a store of its own.
const AT_ONCE: usize = 8;

/// One promise, and the code that tries to break it.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    concerns: Concerns,
    run: for<'a> fn(&'a mut Store) -> Run<'a>,
}

type Run<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

macro_rules! cases {
    ($($concerns:ident { $($theme:ident :: $name:ident)* })*) => {
        const CASES: &[Case] = &[$($(Case {
            name: concat!(stringify!($theme), "::", stringify!($name)),
            concerns: Concerns::$concerns,
            run: |store| Box::pin($theme::$name(store)),
        }),*),*];
    };
}

cases! {
    All {
        exclusion::tasks_of_one_client_take_turns
        exclusion::clients_take_turns
        exclusion::two_guards_of_one_process_exclude_each_other
        exclusion::try_acquire_finds_it_free_or_busy
        exclusion::names_of_every_kind_are_locks_of_their_own
        exclusion::a_thousand_names_at_once
        order::waiters_are_served_in_the_order_of_their_arrival
        order::a_newcomer_never_passes_a_queue
        order::tokens_rise_from_holder_to_holder
        order::asking_again_brings_the_same_token
        lease::the_wrong_owner_changes_nothing
        lease::a_lease_without_renewal_ends
        lease::renewal_keeps_it
        lease::an_extension_moves_the_end
        lease::a_wait_that_elapses_names_the_holder
        lease::a_dropped_guard_frees
        lease::work_that_returns_fails_or_panics_frees
        lease::a_client_that_closes_gives_everything_back
        lease::a_holder_can_be_asked_to_stop
        lease::nobody_else_is_asked_to_stop
        loss::a_holder_that_is_cut_off_learns_it_before_anybody_else_holds
        loss::work_that_loses_its_lock_is_dropped
        loss::a_lost_reply_to_an_ask_makes_no_orphan
        loss::a_lost_reply_to_a_renewal_is_made_up_for
        loss::a_lost_reply_to_a_release_is_no_alarm
        loss::replies_that_stay_lost_leave_nothing_behind
        cancel::an_acquire_dropped_at_any_poll_leaves_nothing_behind
        cancel::a_wait_dropped_at_any_poll_leaves_nothing_behind
        cancel::an_acquire_dropped_at_any_time_leaves_nothing_behind
        messages::a_lost_hand_over_costs_two_seconds
        messages::a_doubled_hand_over_does_no_harm
        messages::a_late_hand_over_does_no_harm
        session::a_lock_taken_again_is_one_hold_until_its_last_guard_goes
        session::a_loss_is_told_to_all_guards_and_nothing_nests_in_it
        crash::an_engine_that_is_gone_is_passed_over_in_the_queue
    }
    Processes {
        exclusion::processes_share_a_counter_in_a_file
        order::waiters_of_many_processes_are_served_in_the_order_of_their_arrival
        crash::a_killed_holder_frees_the_lock
        crash::a_killed_waiter_is_passed_over
        crash::a_holder_that_was_stopped_for_too_long_has_lost
        crash::a_stopped_holder_that_wakes_in_time_still_holds
        crash::a_forked_copy_does_nothing
        crash::another_process_can_be_asked_to_stop
    }
    Wire {
        wire::a_cut_before_an_ask_costs_one_more_try
        wire::a_lost_reply_to_an_ask_makes_no_orphan
        wire::a_lost_reply_to_a_renewal_is_made_up_for
        wire::a_lost_reply_to_a_release_is_no_alarm
        wire::doubled_requests_do_no_harm
        wire::doubled_replies_do_no_harm
        wire::a_slow_network_only_costs_time
        wire::a_waiter_whose_connection_is_cut_is_still_served
        wire::a_waiter_that_hears_no_pushes_is_still_served
        wire::a_holder_behind_a_black_hole_learns_it_before_anybody_else_holds
        wire::a_store_out_of_reach_is_a_typed_error
    }
    Redis {
        redis::scripts_are_flushed_during_use
        redis::foreign_values_are_left_alone
        redis::a_foreign_lock_is_taken_over_once_it_goes_away
        redis::a_replica_is_refused
        redis::a_demoted_server_keeps_nobody_waiting_in_vain
        redis::a_full_memory_stops_acquires_only
        redis::a_holder_learns_that_the_server_forgot
        redis::a_holder_learns_that_the_key_was_deleted
        redis::a_server_that_sleeps_for_longer_than_the_lease
        redis::an_ask_that_is_carried_out_after_it_was_given_up
        redis::a_killed_server_that_comes_back
        redis::tokens_rise_over_every_loss_of_data
    }
}

/// Runs the list over an engine, as a test program whose arguments are those of `cargo test`. `taker` is the path of
/// the program of that name.
pub fn run(maker: Maker, taker: &str) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let (concerned, other): (Vec<&Case>, _) =
        CASES.iter().partition(|case| maker.concerned.contains(&case.concerns));
    let trials = concerned
        .iter()
        .map(|case| {
            let (case, taker) = (**case, PathBuf::from(taker));
            Trial::test(format!("{}::{}", maker.name, case.name), move || {
                try_case(case, maker, taker);
                Ok(())
            })
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        println!(
            "{}: {} of {} cases ran",
            maker.name,
            conclusion.num_passed + conclusion.num_failed,
            CASES.len()
        );
        for concerns in [Concerns::Processes, Concerns::Wire, Concerns::Redis] {
            let cases = other.iter().filter(|case| case.concerns == concerns).count();
            if cases > 0 {
                println!("{}: {cases} cases do not concern it ({concerns:?})", maker.name);
            }
        }
    }
    conclusion.exit_code()
}

/// Runs one case over a store of its own. Panics if it fails.
fn try_case(case: Case, maker: Maker, taker: PathBuf) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("there is room for two threads");
    let mut store = Store::new((maker.make)(), taker);
    let begun = Instant::now();
    let within_limit = runtime.block_on(async {
        timeout(CASE_LIMIT, async {
            (case.run)(&mut store).await;
            store.check_empty().await;
        })
        .await
    });
    assert!(within_limit.is_ok(), "{} did not end in {:?}", case.name, begun.elapsed());
    // Tasks of a case end with its runtime; whatever they still hold ends with the store.
    runtime.shutdown_background();
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use tenure_core::{Reply, Token};
    use tenure_embedded::MemoryEngine;
    use tenure_engine::{BoxFuture, Engine};

    use super::*;
    use crate::faulty::{Calls, Faulty, HandOvers};
    use crate::subject::{MEMORY, Subject};

    /// The engine in memory with a bug.
    struct Buggy<const BUG: usize> {
        name: String,
    }

    /// Changes replies, or loses messages where it is `None`.
    type Bug = Option<fn(Reply) -> Reply>;

    /// Each bug, and the case that has to find it.
    const BUGS: [(&str, Bug); 7] = [
        ("exclusion::two_guards_of_one_process_exclude_each_other", Some(grant_to_anybody)),
        ("exclusion::tasks_of_one_client_take_turns", Some(grant_to_anybody)),
        ("order::tokens_rise_from_holder_to_holder", Some(one_token_for_all)),
        ("order::asking_again_brings_the_same_token", Some(a_token_for_each_ask)),
        ("lease::the_wrong_owner_changes_nothing", Some(obey_anybody)),
        ("lease::a_holder_can_be_asked_to_stop", Some(tell_nobody)),
        ("crash::an_engine_that_is_gone_is_passed_over_in_the_queue", None),
    ];

    fn grant_to_anybody(reply: Reply) -> Reply {
        match reply {
            Reply::Queued { .. } | Reply::Busy { .. } => Reply::Granted { token: Token(1) },
            reply => reply,
        }
    }

    fn one_token_for_all(reply: Reply) -> Reply {
        match reply {
            Reply::Granted { .. } => Reply::Granted { token: Token(1) },
            reply => reply,
        }
    }

    fn a_token_for_each_ask(reply: Reply) -> Reply {
        static ASKS: AtomicU64 = AtomicU64::new(0);
        match reply {
            Reply::Granted { token } => Reply::Granted { token: Token(token.0 + ASKS.fetch_add(1, Relaxed)) },
            reply => reply,
        }
    }

    fn obey_anybody(reply: Reply) -> Reply {
        if reply == Reply::NotHeld { Reply::Renewed } else { reply }
    }

    fn tell_nobody(reply: Reply) -> Reply {
        if matches!(reply, Reply::Told { .. }) { Reply::NotHeld } else { reply }
    }

    impl<const BUG: usize> Subject for Buggy<BUG> {
        fn url(&self) -> String {
            format!("memory:{}", self.name)
        }

        fn engine(&self) -> BoxFuture<'_, Arc<dyn Engine>> {
            let faulty = Faulty::new(MemoryEngine::named(&self.name));
            match BUGS[BUG].1 {
                Some(bug) => faulty.calls(Calls::Twist(bug)),
                None => faulty.hand_overs(HandOvers::Lose),
            }
            Box::pin(async { faulty as Arc<dyn Engine> })
        }

        fn sees_processes(&self) -> bool {
            true
        }

        fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
            Box::pin(async { Vec::new() })
        }
    }

    fn finds<const BUG: usize>() {
        let (name, _) = BUGS[BUG];
        let case = *CASES.iter().find(|case| case.name == name).expect("it is in the list");
        let make: fn() -> Box<dyn Subject> = || Box::new(Buggy::<BUG> { name: format!("bug-{BUG}") });
        let buggy = Maker { make, ..MEMORY };
        assert!(
            catch_unwind(|| try_case(case, MEMORY, PathBuf::new())).is_ok(),
            "{name} passes without a bug"
        );
        assert!(catch_unwind(|| try_case(case, buggy, PathBuf::new())).is_err(), "{name} overlooks its bug");
    }

    /// A list that nothing can fail proves nothing.
    #[test]
    fn every_bug_is_found() {
        finds::<0>();
        finds::<1>();
        finds::<2>();
        finds::<3>();
        finds::<4>();
        finds::<5>();
        finds::<6>();
    }
}
