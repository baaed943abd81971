//! `tenure lab replay`: the schedule that breaks a form, on a real server, with real commands.

use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_forms::{Command, Form, Reply};
use tenure_model::lab::pinned;
use tenure_model::lab::{Action, Broken, Doing, Promise, TTL_MS, Verdict, World, diagram, verdict};

use crate::report::tell;
use crate::servers::Server;
use crate::{LabError, fenced};

/// Time passes for so much longer than in the model: the server counts from when a command reached it.
const LATER: Duration = Duration::from_millis(40);

/// The steps that a caller may need to come to an end.
const STEPS_MAX: usize = 40;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The form; see `tenure lab ls`
    #[arg(value_parser = crate::form_named)]
    form: &'static Form,
    /// Which of its broken promises; otherwise the one that it is known for
    #[arg(long, value_name = "NAME", value_parser = crate::promise_named)]
    promise: Option<Promise>,
    /// The server; otherwise one is started. For redlock three times
    #[arg(long, value_name = "URL")]
    url: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<u8, LabError> {
    if args.form.steps.is_none() {
        return fenced::replay(&args.url);
    }
    let promise = args.promise.unwrap_or_else(|| pinned::headline(args.form.name));
    let found = promise.concerns(args.form).then(|| verdict(args.form, promise));
    let Some(Verdict::Broken(broken)) = found else {
        let breaks = |one: &Promise| matches!(pinned::of(args.form.name, *one), Some(pinned::Pin::Broken(_)));
        let broken: Vec<_> = Promise::ALL.into_iter().filter(breaks).map(Promise::name).collect();
        return Err(LabError::Usage(format!(
            "{} does not break {}; it breaks {}",
            args.form.name,
            promise.name(),
            broken.join(", ")
        )));
    };
    let servers = Server::start(&args.url, args.form.nodes)?;
    let key = key()?;
    let mut stage = Stage { servers, key, world: broken.begin.beginning_at(next_second()), agrees: true };
    let played = stage.play(promise, &broken);
    stage.clean();
    played
}

/// A key that nobody else uses.
pub(crate) fn key() -> Result<String, LabError> {
    let number = getrandom::u32().map_err(|error| LabError::System(std::io::Error::other(error)))?;
    Ok(format!("tenure-lab:{number:08x}"))
}

/// Waits for the beginning of a second, where the forms that count them begin alike; in milliseconds since 1970.
fn next_second() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let begin = now.as_secs() + 1;
    sleep(Duration::from_secs(begin).saturating_sub(now));
    begin * 1000
}

/// The real servers, and the world as it has to be.
struct Stage {
    servers: Vec<Server>,
    key: String,
    world: World,
    /// Every answer was as expected.
    agrees: bool,
}

impl Stage {
    fn play(&mut self, promise: Promise, broken: &Broken) -> Result<u8, LabError> {
        let shown: Vec<_> = self.servers.iter().map(Server::shown).collect();
        tell!("{} on {}", self.world.form().name, shown.join(", "));
        tell!("to be broken: {} ({})", promise.name(), promise.words());
        if let Some(clocks) = diagram::clocks(&self.world) {
            tell!("clocks: {clocks}");
        }
        tell!("the key `lock` is {}\n\n{}", self.key, diagram::head(&self.world));
        for action in &broken.actions {
            self.step(*action)?;
        }
        tell!("\n{}\n", broken.what);
        self.damage(promise)?;
        if self.agrees {
            tell!("\nEach answer was the one that `tenure lab check` reckons with.");
        } else {
            tell!("\nThe server answered otherwise than reckoned with: see above.");
        }
        Ok(u8::from(!self.agrees))
    }

    /// Lets something happen, in the world and on the servers.
    fn step(&mut self, action: Action) -> Result<(), LabError> {
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
                self.agrees = false;
                expected = Some(std::mem::replace(&mut done.reply, reply));
            }
        }
        let keys = self.keys()?;
        tell!("{}", diagram::row(&self.world, action, &happened, &keys));
        if let Some(expected) = expected {
            tell!("       expected: {}", diagram::answer(&expected));
        }
        Ok(())
    }

    /// What the servers hold under the key.
    fn keys(&mut self) -> Result<Vec<String>, LabError> {
        let key = &self.key;
        let look = |server: &mut Server| {
            let Reply::Value(Some(value)) = server.run(key, &Command::Get)? else {
                return Ok("-".to_owned());
            };
            let ms: i64 =
                redis::from_redis_value(server.ask(&["PTTL", key])?).map_err(redis::RedisError::from)?;
            Ok(if ms < 0 { format!("{value} (no end)") } else { format!("{value} ({ms} ms)") })
        };
        self.servers.iter_mut().map(look).collect()
    }

    /// Lets a caller go on until it has the lock, or is done.
    fn go_on(&mut self, who: usize) -> Result<(), LabError> {
        for _ in 0..STEPS_MAX {
            self.step(Action::Go(who))?;
            if matches!(self.world.players[who].doing, Doing::Idle | Doing::Inside { .. }) {
                break;
            }
        }
        Ok(())
    }

    /// What comes of it.
    fn damage(&mut self, promise: Promise) -> Result<(), LabError> {
        match promise {
            Promise::CrashFrees | Promise::KeyEnds => {
                tell!("Three seconds later, long after the time that was asked for:");
                self.wait(Duration::from_millis(3 * TTL_MS));
                if promise == Promise::CrashFrees {
                    self.newcomer()?;
                } else {
                    let taken = self.servers[0].ask(&["SET", &self.key, "t3", "NX", "PX", "1000"])?;
                    tell!(
                        "  SET lock t3 NX PX 1000 → {}",
                        if taken == redis::Value::Nil { "nil" } else { "OK" }
                    );
                }
                let ttl: i64 = redis::from_redis_value(self.servers[0].ask(&["TTL", &self.key])?)
                    .map_err(redis::RedisError::from)?;
                tell!("  TTL lock → {ttl}");
                tell!("A key without an end: SET NX and SETNX wait for ever.");
            }
            Promise::OwnerOnly => {
                tell!("The next one that comes:");
                self.newcomer()?;
            }
            Promise::OwnIdentity => {
                tell!("A releases, and means its own lock:");
                self.go_on(0)?;
            }
            Promise::StampStays => {
                let winner =
                    self.world.players.iter().position(|player| matches!(player.doing, Doing::Inside { .. }));
                tell!("The winner releases:");
                self.go_on(winner.unwrap_or(0))?;
            }
            Promise::LivingStays => {
                tell!("The other one goes on:");
                self.go_on(1)?;
            }
            Promise::Exclusion | Promise::Told | Promise::TokensRise => {}
        }
        let inside: Vec<_> = (0..self.world.players.len())
            .filter(|who| matches!(self.world.players[*who].doing, Doing::Inside { .. }))
            .map(diagram::called)
            .collect();
        match &inside[..] {
            [] => {}
            [one] => tell!("{one} works under the lock."),
            [rest @ .., last] => tell!("{} and {last} work at the same time.", rest.join(", ")),
        }
        Ok(())
    }

    /// A third caller wants the lock.
    fn newcomer(&mut self) -> Result<(), LabError> {
        let newcomer = self.world.join();
        tell!("{}", diagram::head(&self.world));
        self.go_on(newcomer)
    }

    fn wait(&mut self, time: Duration) {
        sleep(time);
        self.world.now_ms += time.as_millis() as u64;
    }

    /// Leaves nothing behind on a server that is not ours.
    fn clean(&mut self) {
        for server in &mut self.servers {
            // What was to be shown has been shown.
            let _ = server.ask(&["DEL", &self.key]);
        }
    }
}
