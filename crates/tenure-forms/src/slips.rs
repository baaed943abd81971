//! The slips in the documents' own listings: what is written, what comes of it, what was meant. Tests show each effect:
//! here, and where it is a server's in `tenure-lab/tests/slips.rs`.

/// A line of a listing that does not do what it says.
#[derive(Debug)]
pub struct Slip {
    /// The form that the listing is about.
    pub form: &'static str,
    /// What is written there.
    pub written: &'static str,
    /// What comes of it.
    pub effect: &'static str,
    /// What was meant.
    pub meant: &'static str,
}

/// All of them.
pub const SLIPS: [Slip; 9] = [
    Slip {
        form: "getset",
        written: "the wait loop takes a second off its 10 s after each pause of 10 ms",
        effect: "11 tries, and it gives up after about 0.1 s",
        meant: "take off what the pause took: 1,001 tries in 10 s",
    },
    Slip {
        form: "pid-lock",
        written: "sleep(0.2)",
        effect: "PHP's sleep counts whole seconds: it does not sleep at all, and asks the server as fast as it can",
        meant: "usleep(200000)",
    },
    Slip {
        form: "pid-lock",
        written: "the template calls itself again when the lock is busy",
        effect: "with the sleep that does not sleep, thousands of frames deep within a second, until memory is out",
        meant: "a loop with a limit",
    },
    Slip {
        form: "pid-lock",
        written: "the time that is left, in milliseconds, is compared with 0.003",
        effect: "the buffer is 3 microseconds: a lock that ends within a millisecond is deleted, or the next one's",
        meant: "3 (milliseconds)",
    },
    Slip {
        form: "set-nx-ex",
        written: "locks the key \"locl\" and deletes the key \"lock\"",
        effect: "nothing is ever released: each lock lasts until it ends by itself",
        meant: "one name for the key, in one place",
    },
    Slip {
        form: "cad",
        written: "SET key value NX 10 EX: NX between EX and its number",
        effect: "the server answers with a syntax error, and nobody ever gets the lock",
        meant: "SET key value NX EX 10",
    },
    Slip {
        form: "cad",
        written: "the token is made in one function and read in another, where it is not known: all tokens are empty",
        effect: "empty equals empty: everybody releases everybody's lock",
        meant: "keep the token with the lock",
    },
    Slip {
        form: "cad",
        written: "EVAL script key token: without the number of keys",
        effect: "the server refuses it, and nobody ever releases: each lock lasts until it ends by itself",
        meant: "EVAL script 1 key token",
    },
    Slip {
        form: "get-del",
        written: "stores `true`, and compares what it reads with its token",
        effect: "the server keeps \"1\", which equals no token: nobody ever releases, each lock lasts until it ends by itself",
        meant: "store the token",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, Command, Done, Form, Next, Reply, Slot, Ttl, cad, get_del, getset, pid_lock};

    fn take(server: &mut Slot, value: &str) -> Reply {
        server.run(0, &Command::SetNx { value: value.to_owned(), ttl: Some(Ttl::Seconds(10)) })
    }

    /// Lets a caller release at `now_ms`; what the server answered last.
    fn release(form: &Form, me: &mut Caller, server: &mut Slot, now_ms: u64) -> Reply {
        let mut last = None;
        while let Next::Send { node, command } = form.release(me, now_ms, last.as_ref()) {
            let reply = server.run(now_ms, &command);
            last = Some(Done { node, command, reply });
        }
        last.expect("a release sends something").reply
    }

    #[test]
    fn every_slip_belongs_to_a_form() {
        assert!(SLIPS.iter().all(|slip| crate::form(slip.form).is_some()));
    }

    #[test]
    fn the_wait_loop_gives_up_after_a_tenth_of_a_second() {
        let written: Vec<_> = getset::tries(true).collect();
        assert_eq!((written.len(), written.last().unwrap().as_millis()), (11, 100));
        let meant: Vec<_> = getset::tries(false).collect();
        assert_eq!((meant.len(), meant.last().unwrap().as_secs()), (1001, 10));
    }

    #[test]
    fn a_fifth_of_a_second_is_no_second() {
        assert_eq!(pid_lock::pause(true).as_nanos(), 0);
        assert_eq!(pid_lock::pause(false).as_millis(), 200);
    }

    /// The template as written, on a lock that stays busy. It stops before the stack does.
    #[test]
    fn a_template_that_calls_itself_is_as_deep_as_it_was_tried_often() {
        fn template(server: &mut Slot, tries: &mut usize, frames: usize) -> usize {
            *tries += 1;
            match take(server, "late") {
                Reply::No if frames < 5_000 => template(server, tries, frames + 1),
                _ => frames,
            }
        }
        let (mut server, mut tries) = (Slot::default(), 0);
        take(&mut server, "holder");
        let frames = template(&mut server, &mut tries, 1);
        assert_eq!((frames, tries), (5_000, 5_000));
    }

    #[test]
    fn three_microseconds_protect_nothing() {
        let left = |buffer_ms| {
            let mut server = Slot::default();
            let mut me = Caller::new("", 1000);
            let Next::Send { command, .. } = pid_lock::FORM.acquire(&mut me, 0, None) else { panic!() };
            server.run(0, &command);
            me.buffer_ms = buffer_ms;
            // Two milliseconds before its end.
            release(&pid_lock::FORM, &mut me, &mut server, 999);
            server.look(999).is_some()
        };
        assert!(left(pid_lock::release_buffer(false).as_millis() as u64), "meant: left to be taken over");
        assert!(!left(pid_lock::release_buffer(true).as_millis() as u64), "written: deleted");
    }

    #[test]
    fn a_lock_under_another_name_is_not_released() {
        let (mut locl, mut lock) = (Slot::default(), Slot::default());
        take(&mut locl, "1");
        assert_eq!(lock.run(1, &Command::Del), Reply::No);
        assert_eq!(take(&mut locl, "1"), Reply::No);
        assert!(locl.look(10_000).is_none(), "it ends by itself");
    }

    #[test]
    fn tokens_that_are_all_empty_release_each_others_locks() {
        let mut server = Slot::default();
        take(&mut server, "");
        let mut another = Caller::new("", 10_000);
        assert_eq!(release(&cad::FORM, &mut another, &mut server, 1), Reply::Yes);
    }

    #[test]
    fn true_is_no_token() {
        let mut server = Slot::default();
        // What PHP makes of `true`.
        take(&mut server, "1");
        let mut me = Caller::new("5f2c", 10_000);
        me.wrote = me.token.clone();
        release(&get_del::FORM, &mut me, &mut server, 1);
        assert!(server.look(1).is_some());
    }
}
