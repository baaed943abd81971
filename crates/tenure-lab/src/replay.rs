//! `tenure lab replay`: the schedule that breaks a form, on a real server, with real commands.

use std::thread::sleep;
use std::time::Duration;

use redis::Value;
use tenure_engine::unix_ms;
use tenure_forms::{Command, Form, Reply};
use tenure_model::lab::diagram::{self, Lanes, called};
use tenure_model::lab::{Action, Broken, Doing, Promise, STEPS_MAX, TTL_MS, Verdict, World, pinned, verdict};

use crate::report::{progress, tell};
use crate::servers::Server;
use crate::{LabError, fenced};

/// Time passes for so much longer than in the model: the server counts from when a command reached it.
const LATER: Duration = Duration::from_millis(40);

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The form; see `tenure lab ls`
    #[arg(value_parser = crate::form_named)]
    form: &'static Form,
    /// Which of its broken promises; otherwise the one that it is known for
    #[arg(long, value_name = "NAME", value_parser = crate::promise_named)]
    promise: Option<Promise>,
    /// The server, by redis://HOST:PORT/DB or unix:/PATH; otherwise one is started. For redlock three times. Everybody on
    /// this host can read a password in it
    #[arg(long, value_name = "URL")]
    url: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<u8, LabError> {
    if args.form.steps.is_none() {
        return match args.promise {
            None => fenced::replay(&args.url),
            Some(_) => Err(LabError::Usage(
                "tenure is replayed as a whole: a stale writer is refused. How a store that forgets lets two hold: \
                 tenure lab check tenure"
                    .to_owned(),
            )),
        };
    }
    let expected = pinned::of(args.form.name);
    let promise = args.promise.unwrap_or(expected.headline);
    if !expected.broken().any(|one| one == promise) {
        let broken: Vec<_> = expected.broken().map(Promise::name).collect();
        let text =
            format!("{} does not break {}; it breaks {}", args.form.name, promise.name(), broken.join(", "));
        return Err(LabError::Usage(text));
    }
    progress(&format!("looking for the shortest way to break {}", args.form.name));
    let Verdict::Broken(broken) = verdict(args.form, promise) else {
        return Err(LabError::Server(
            "the check does not find what is pinned; see tenure lab check".to_owned(),
        ));
    };
    let key = key()?;
    let servers = Server::start(&args.url, args.form.nodes, &[&key])?;
    let own = args.url.is_empty();
    // At the beginning of a second, as in the model.
    let world = broken.begin.beginning_at(unix_ms() / 1000 * 1000);
    Stage { servers, own, key, world }.play(promise, &broken)
}

/// A key that nobody else uses.
pub(crate) fn key() -> Result<String, LabError> {
    let number = getrandom::u32().map_err(|error| LabError::System(std::io::Error::other(error)))?;
    Ok(format!("tenure-lab:{number:08x}"))
}

/// The real servers, and the world as it has to be.
struct Stage {
    servers: Vec<Server>,
    /// The servers are ours.
    own: bool,
    key: String,
    world: World,
}

impl Stage {
    fn play(&mut self, promise: Promise, broken: &Broken) -> Result<u8, LabError> {
        let shown: Vec<_> = self.servers.iter().map(Server::shown).collect();
        tell!("{} on {}", self.world.form().name, shown.join(", "));
        tell!("to be broken: {} ({})", promise.name(), promise.words());
        if let Some(clocks) = diagram::clocks(&self.world) {
            tell!("clocks: {clocks}");
        }
        if !self.own && broken.actions.iter().any(|action| matches!(action, Action::Forget(_))) {
            tell!("no server of yours is restarted: the key is deleted instead");
        }
        let lanes = Lanes::of(&self.world, &broken.actions);
        tell!("the key `lock` is {}\n\n{}", self.key, lanes.head());
        for action in &broken.actions {
            let Step { happened, keys, expected } = self.step(*action)?;
            tell!("{}", lanes.row(&self.world, *action, &happened, &keys));
            if let Some(expected) = expected {
                tell!(
                    "\nThe server should have answered {expected}: this is not the way that `tenure lab check` found."
                );
                return Ok(1);
            }
        }
        tell!("\n{}\n", broken.what);
        let damaged = self.damage(promise)?;
        tell!(
            "\n{}",
            if damaged {
                "Each answer was the one that `tenure lab check` reckons with."
            } else {
                "This is not the damage that was to be seen."
            }
        );
        Ok(u8::from(!damaged))
    }

    /// Lets something happen, in the world and on the servers.
    fn step(&mut self, action: Action) -> Result<Step, LabError> {
        let before_ms = self.world.now_ms;
        let mut happened = self.world.act(action);
        match action {
            Action::Pass => sleep(Duration::from_millis(self.world.now_ms - before_ms) + LATER),
            Action::Forget(node) => self.servers[node].forget(&self.key)?,
            Action::Go(_) | Action::Die(_) => {}
        }
        let mut expected = None;
        if let Some(done) = &mut happened.done {
            let reply = self.servers[done.node].run(&self.key, &done.command)?;
            if reply != done.reply {
                expected = Some(diagram::answer(&done.command, &done.reply));
                done.reply = reply;
            }
        }
        Ok(Step { happened, keys: self.keys()?, expected })
    }

    /// What the servers hold under the key.
    fn keys(&mut self) -> Result<Vec<String>, LabError> {
        let key = &self.key;
        let look = |server: &mut Server| {
            let Reply::Value(Some(value)) = server.run(key, &Command::Get)? else {
                return Ok("-".to_owned());
            };
            let ms = server.number(&["PTTL", key])?;
            Ok(if ms < 0 { format!("{value} (no end)") } else { format!("{value} ({ms} ms)") })
        };
        self.servers.iter_mut().map(look).collect()
    }

    /// Lets a caller go on until it has the lock, or is done. False: the server answered otherwise than expected.
    fn go_on(&mut self, who: usize) -> Result<bool, LabError> {
        for _ in 0..STEPS_MAX {
            let action = Action::Go(who);
            let Step { happened, keys, expected } = self.step(action)?;
            tell!("{}", diagram::line(&self.world, action, &happened, &keys));
            if expected.is_some() {
                return Ok(false);
            }
            if matches!(self.world.players[who].doing, Doing::Idle | Doing::Inside { .. }) {
                break;
            }
        }
        Ok(true)
    }

    /// What comes of it. False: nothing.
    fn damage(&mut self, promise: Promise) -> Result<bool, LabError> {
        match promise {
            Promise::CrashFrees | Promise::KeyEnds => {
                tell!("Three seconds later, long after the time that was asked for:");
                self.wait(Duration::from_millis(3 * TTL_MS));
                let refused = if promise == Promise::CrashFrees {
                    let newcomer = self.world.join();
                    self.go_on(newcomer)? && !self.world.players[newcomer].has_won()
                } else {
                    let taken =
                        self.servers[0].ask(&["SET", &self.key, "c1", "NX", "PX", "1000"])? == Value::Okay;
                    tell!("  SET lock c1 NX PX 1000 → {}", if taken { "OK" } else { "nil" });
                    !taken
                };
                let ttl = self.servers[0].number(&["TTL", &self.key])?;
                tell!("  TTL lock → {ttl}");
                tell!("A key without an end: SETNX and SET NX wait for ever.");
                Ok(refused && ttl == -1)
            }
            Promise::OwnIdentity => {
                tell!("A releases, and means its own lock:");
                let agreed = self.go_on(0)?;
                let gone = self.keys()?.iter().all(|key| key == "-");
                tell!("B works on, and its lock is gone.");
                Ok(agreed && gone && self.inside() == [1])
            }
            Promise::StampStays => {
                let winner = self.inside().first().copied().unwrap_or(0);
                let wrote = self.world.players[winner].caller.wrote.clone();
                let key = self.keys()?.remove(0);
                tell!("{} wrote {wrote}. It releases:", called(winner));
                let agreed = self.go_on(winner)?;
                Ok(agreed && !key.starts_with(&wrote))
            }
            Promise::Exclusion
            | Promise::Told
            | Promise::OwnerOnly
            | Promise::TokensRise
            | Promise::LossSurvived
            | Promise::LivingStays => self.two_work(promise),
        }
    }

    /// Everybody who is about to have the lock goes on, and where one was freed somebody new comes.
    fn two_work(&mut self, promise: Promise) -> Result<bool, LabError> {
        let acquiring = |player: &tenure_model::lab::Player| matches!(player.doing, Doing::Acquiring { .. });
        let mut comers: Vec<_> =
            (0..self.world.players.len()).filter(|who| acquiring(&self.world.players[*who])).collect();
        if promise == Promise::OwnerOnly {
            // Before the one who has just lost it writes the key's end anew.
            comers.insert(0, self.world.join());
        }
        if !comers.is_empty() {
            tell!("And then:");
        }
        let mut agreed = true;
        for who in comers {
            agreed &= self.go_on(who)?;
        }
        let inside: Vec<_> = self.inside().into_iter().map(called).collect();
        if let [rest @ .., last] = &inside[..] {
            tell!("{} and {last} work at the same time.", rest.join(", "));
        }
        Ok(agreed && inside.len() > 1)
    }

    /// Who works under the lock.
    fn inside(&self) -> Vec<usize> {
        let players = self.world.players.iter().enumerate();
        players
            .filter(|(_, player)| matches!(player.doing, Doing::Inside { .. }))
            .map(|(who, _)| who)
            .collect()
    }

    fn wait(&mut self, time: Duration) {
        sleep(time);
        self.world.now_ms += time.as_millis() as u64;
    }
}

/// Something that happened on the servers.
struct Step {
    happened: tenure_model::lab::Happened,
    /// What the key is now.
    keys: Vec<String>,
    /// The answer that was reckoned with, if another one came.
    expected: Option<String>,
}
