//! The one list of cases. An engine passes it, or it is no engine of Tenure.

use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use tokio::time::timeout;

use crate::subject::{Concerns, Maker, Store};
use crate::{cancel, crash, exclusion, lease, loss, messages, order, redis, wire};

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
