use std::hash::{Hash, Hasher};

use tenure_forms::{Caller, Command, Done, Form, Next, Reply, Slot};

use super::Promise;
use super::promise::called;

/// How long each lock is to last: whole seconds, as the older forms count.
pub const TTL_MS: u64 = 1000;

/// When a world begins, in milliseconds since 1970: at the beginning of a second.
const BEGIN_MS: u64 = 1_000_000;

/// How long it lasts.
const LASTS_MS: u64 = 8000;

/// How often each caller tries: twice, but once where each try is a command to each of several servers.
const fn rounds(nodes: usize) -> u8 {
    if nodes > 1 { 1 } else { 2 }
}

/// Longer than anything lasts: after it, whatever ends by itself has ended.
const LATER_MS: u64 = 30_000;

/// The steps that a caller may need to come to an end.
pub const STEPS_MAX: usize = 40;

/// What can happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// A caller sends its next command, and the server answers it.
    Go(usize),
    /// A caller dies.
    Die(usize),
    /// Time goes on to the next moment at which something changes.
    Pass,
    /// A server restarts empty, or its clock jumps far ahead.
    Forget(usize),
}

/// What a caller does.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Doing {
    /// Nothing at the moment.
    Idle,
    /// It wants the lock since `since_ms`, and is about to send this.
    Acquiring {
        /// When it began.
        since_ms: u64,
        /// To which server.
        node: usize,
        /// What.
        command: Command,
    },
    /// It works under the lock.
    Inside {
        /// Until then the lock is its own, by the true time, as long as servers and clocks do as they should.
        valid_until_ms: Option<u64>,
        /// From then on it knows, by its own clock, that it must stop.
        until_ms: Option<u64>,
    },
    /// It is done, and about to send this.
    Leaving {
        /// To which server.
        node: usize,
        /// What.
        command: Command,
    },
    /// It died.
    Dead,
}

/// A caller in a world.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Player {
    /// What the form keeps of it.
    pub caller: Caller,
    /// How far its clock is ahead of the true time.
    pub ahead_ms: i64,
    /// What it does.
    pub doing: Doing,
    rounds: u8,
}

impl Player {
    fn new(ahead_ms: i64, rounds: u8) -> Self {
        Self { caller: Caller::new("", TTL_MS), ahead_ms, doing: Doing::Idle, rounds }
    }

    /// What its clock shows.
    pub fn clock_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_add_signed(self.ahead_ms)
    }

    /// Is it inside, and as far as it can know rightly so?
    pub fn believes(&self, now_ms: u64) -> bool {
        matches!(&self.doing, Doing::Inside { until_ms, .. } if until_ms.is_none_or(|until| self.clock_ms(now_ms) < until))
    }

    /// Is it inside, and the lock is its own by the true time?
    pub fn is_valid(&self, now_ms: u64) -> bool {
        matches!(&self.doing, Doing::Inside { valid_until_ms, .. } if valid_until_ms.is_none_or(|until| now_ms < until))
    }

    /// Has it won, and not finished its release?
    pub fn has_won(&self) -> bool {
        matches!(self.doing, Doing::Inside { .. } | Doing::Leaving { .. })
    }
}

/// A server with the lock's key.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Node {
    /// The key.
    pub slot: Slot,
    /// Whose lock it is: who took it, or took it over.
    whose: Option<usize>,
}

/// Callers, servers, and the true time.
#[derive(Clone, Debug)]
pub struct World {
    form: &'static Form,
    rules: Rules,
    /// The true time, which is the servers' time.
    pub now_ms: u64,
    begin_ms: u64,
    /// The servers.
    pub nodes: Vec<Node>,
    /// The callers.
    pub players: Vec<Player>,
    died: bool,
    forgot: bool,
}

/// What an action did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Happened {
    /// The command that was carried out.
    pub done: Option<Done>,
    /// A caller has the lock now.
    pub won: bool,
    /// Somebody else has it.
    pub busy: bool,
    /// Whose lock it deleted, if not its own.
    pub freed: Option<usize>,
    /// Whose stamp it replaced without winning.
    pub moved: Option<usize>,
    /// Whose lock it took over although its time was not over.
    pub robbed: Option<usize>,
}

/// The worlds in which a form is checked for a promise: with clocks alike, and where stamps matter with one that is
/// three seconds fast or one slow.
pub fn worlds(form: &'static Form, promise: Promise) -> Vec<World> {
    let skews: &[i64] = if form.stamped { &[0, 3000, -1000] } else { &[0] };
    let rules = Rules {
        same_tokens: form.few_tokens.is_some() && promise == Promise::OwnIdentity,
        may_forget: promise == Promise::LossSurvived,
    };
    skews.iter().map(|ahead_ms| World::new(form, BEGIN_MS, rules, *ahead_ms)).collect()
}

/// What may happen in a world besides a death and time that passes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Rules {
    /// Tokens come from a range so small that two are the same.
    same_tokens: bool,
    /// A server may forget.
    may_forget: bool,
}

impl World {
    /// Two callers that begin at `begin_ms`; the second one's clock is ahead by `ahead_ms`.
    fn new(form: &'static Form, begin_ms: u64, rules: Rules, ahead_ms: i64) -> Self {
        let rounds = rounds(form.nodes);
        Self {
            form,
            rules,
            now_ms: begin_ms,
            begin_ms,
            nodes: vec![Node::default(); form.nodes],
            players: vec![Player::new(0, rounds), Player::new(ahead_ms, rounds)],
            died: false,
            forgot: false,
        }
    }

    /// The same world at its beginning, at another time: a whole second.
    #[must_use]
    pub fn beginning_at(&self, begin_ms: u64) -> Self {
        Self::new(self.form, begin_ms, self.rules, self.players[1].ahead_ms)
    }

    /// A new token for each try: of whom, and which one.
    fn token(&self, who: usize) -> String {
        if self.rules.same_tokens {
            return "4711".to_owned();
        }
        let tried = rounds(self.nodes.len()).saturating_sub(self.players[who].rounds);
        format!("{}{tried}", called(who).to_lowercase())
    }

    /// The form.
    pub fn form(&self) -> &'static Form {
        self.form
    }

    /// The time since the beginning.
    pub fn elapsed_ms(&self) -> u64 {
        self.now_ms - self.begin_ms
    }

    /// Everything that can happen now.
    pub fn possible(&self, actions: &mut Vec<Action>) {
        for (who, player) in self.players.iter().enumerate() {
            match player.doing {
                Doing::Dead => continue,
                Doing::Idle if player.rounds == 0 => continue,
                Doing::Idle => {}
                _ if !self.died => actions.push(Action::Die(who)),
                _ => {}
            }
            actions.push(Action::Go(who));
        }
        if self.next_change_ms().is_some_and(|at| at <= self.begin_ms + LASTS_MS) {
            actions.push(Action::Pass);
        }
        if self.rules.may_forget && !self.forgot {
            actions.extend((0..self.nodes.len()).map(Action::Forget));
        }
    }

    /// Lets something happen.
    pub fn act(&mut self, action: Action) -> Happened {
        match action {
            Action::Go(who) => self.go(who),
            Action::Die(who) => {
                self.died = true;
                self.players[who].doing = Doing::Dead;
                Happened::default()
            }
            Action::Pass => {
                self.now_ms = self.next_change_ms().expect("something changes");
                self.expire();
                Happened::default()
            }
            Action::Forget(node) => {
                self.forgot = true;
                self.nodes[node] = Node::default();
                Happened::default()
            }
        }
    }

    /// When something changes by itself: a key ends, a stamp counts as past to somebody, a holder is over its time.
    fn next_change_ms(&self) -> Option<u64> {
        let mut changes = Vec::new();
        for node in &self.nodes {
            if let Some((value, expires_ms)) = node.slot.look(self.now_ms) {
                changes.extend(expires_ms);
                for player in &self.players {
                    let turns = self.form.turns(&player.caller, value);
                    changes.extend(turns.iter().map(|turn| turn.saturating_add_signed(-player.ahead_ms)));
                }
            }
        }
        for player in &self.players {
            if let Doing::Inside { valid_until_ms, until_ms } = player.doing {
                changes.extend(valid_until_ms);
                changes.extend(until_ms.map(|until| until.saturating_add_signed(-player.ahead_ms)));
            }
        }
        changes.into_iter().filter(|at| *at > self.now_ms).min()
    }

    fn expire(&mut self) {
        for node in &mut self.nodes {
            node.slot.expire(self.now_ms);
            if node.slot.look(self.now_ms).is_none() {
                node.whose = None;
            }
        }
    }

    /// Carries out the next command of a caller.
    fn go(&mut self, who: usize) -> Happened {
        let form = self.form;
        let clock_ms = self.players[who].clock_ms(self.now_ms);
        if self.players[who].doing == Doing::Idle {
            self.players[who].rounds = self.players[who].rounds.saturating_sub(1);
            self.players[who].caller.token = self.token(who);
        }
        let player = &mut self.players[who];
        let (since_ms, node, command) = match player.doing.clone() {
            Doing::Idle => match form.acquire(&mut player.caller, clock_ms, None) {
                Next::Send { node, command } => (Some(self.now_ms), node, command),
                _ => return Happened::default(),
            },
            Doing::Acquiring { since_ms, node, command } => (Some(since_ms), node, command),
            Doing::Inside { .. } => match form.release(&mut player.caller, clock_ms, None) {
                Next::Send { node, command } => (None, node, command),
                _ => return Happened::default(),
            },
            Doing::Leaving { node, command } => (None, node, command),
            Doing::Dead => return Happened::default(),
        };
        let reply = self.nodes[node].slot.run(self.now_ms, &command);
        let mut happened = self.account(who, node, &command, &reply);
        let done = Done { node, command, reply };
        let player = &mut self.players[who];
        let next = match since_ms {
            Some(_) => form.acquire(&mut player.caller, clock_ms, Some(&done)),
            None => form.release(&mut player.caller, clock_ms, Some(&done)),
        };
        happened.done = Some(done);
        happened.won = matches!(next, Next::Won { .. });
        happened.busy = matches!(next, Next::Busy);
        let doing = match (next, since_ms) {
            (Next::Send { node, command }, Some(since_ms)) => Doing::Acquiring { since_ms, node, command },
            (Next::Send { node, command }, None) => Doing::Leaving { node, command },
            (Next::Won { until_ms }, since_ms) => {
                let begun_ms = since_ms.unwrap_or(self.now_ms);
                Doing::Inside { valid_until_ms: form.ends.then_some(begun_ms + TTL_MS), until_ms }
            }
            (Next::Busy | Next::Over, _) => Doing::Idle,
        };
        self.players[who].doing = doing;
        happened
    }

    /// Whose lock it is, and whose it was.
    fn account(&mut self, who: usize, node: usize, command: &Command, reply: &Reply) -> Happened {
        let valid = |whose: usize| whose != who && self.players[whose].is_valid(self.now_ms);
        let node = &mut self.nodes[node];
        let mut happened = Happened::default();
        match (command, reply) {
            (Command::SetNx { .. }, Reply::Yes) => node.whose = Some(who),
            (Command::GetSet { seen, .. }, Reply::Value(Some(was))) if was == seen => {
                happened.robbed = node.whose.replace(who).filter(|whose| valid(*whose));
            }
            (Command::GetSet { value, .. }, _) => {
                let moved = |whose: &usize| *whose != who && self.players[*whose].caller.wrote != *value;
                happened.moved = node.whose.filter(moved);
            }
            (Command::Del | Command::DelIf { .. }, Reply::Yes) => {
                happened.freed = node.whose.take().filter(|whose| *whose != who);
            }
            _ => {}
        }
        happened
    }

    /// How the world goes on when nothing more goes wrong: everybody who is alive comes to an end, and time passes.
    #[must_use]
    pub fn later(&self) -> Self {
        let mut later = self.clone();
        for who in 0..later.players.len() {
            for _ in 0..STEPS_MAX {
                if matches!(later.players[who].doing, Doing::Idle | Doing::Dead) {
                    break;
                }
                later.go(who);
            }
        }
        later.now_ms += LATER_MS;
        later.expire();
        later
    }

    /// Somebody new comes, with a clock that is right; its number.
    pub fn join(&mut self) -> usize {
        self.players.push(Player::new(0, rounds(self.nodes.len())));
        self.players.len() - 1
    }

    /// Somebody new wants the lock. Does it get it?
    pub fn can_be_had(mut self) -> bool {
        let newcomer = self.join();
        for _ in 0..STEPS_MAX {
            self.go(newcomer);
            match self.players[newcomer].doing {
                Doing::Acquiring { .. } => {}
                _ => break,
            }
        }
        self.players[newcomer].has_won()
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for World {}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl World {
    /// What tells two worlds of one form apart.
    fn parts(&self) -> impl PartialEq + Hash + '_ {
        (self.now_ms, &self.nodes, &self.players, self.died, self.forgot)
    }
}
