use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use tenure_core::{
    HolderId, Ledger, Message, Name, Occupant, Owner, Place, ProcessId, Reply, Request, Sight, Token, Witness,
};
use tenure_engine::{Answer, BoxFuture, Card, Ear, Engine, Fault, Letter, Look, random_process};

use crate::processes::locked;
use crate::store::{ask_for_nothing, now};

/// How many waiters [`Engine::look`] shows.
const WAITERS_SHOWN: usize = 100;

static STORES: LazyLock<Mutex<HashMap<String, Weak<Store>>>> = LazyLock::new(Mutex::default);

/// The engine of one process: the same ledger as on disk, without a file. For tests, and for programs that want
/// these locks among their tasks only.
///
/// Each value counts as a process: when it is dropped, whatever its owners held or waited for is free.
#[derive(Debug)]
pub struct MemoryEngine {
    store: Arc<Store>,
    name: String,
    me: ProcessId,
}

type Store = Mutex<Inside>;

#[derive(Default)]
struct Inside {
    locks: BTreeMap<Name, Ledger<Vec<Place>>>,
    last: Token,
    members: HashMap<ProcessId, Member>,
}

#[derive(Default)]
struct Member {
    ear: Option<Ear>,
    card: Option<Card>,
}

/// A letter, and the ear that it is for.
type Sent = (Ear, Letter);

impl std::fmt::Debug for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inside").field("locks", &self.locks.len()).finish_non_exhaustive()
    }
}

impl MemoryEngine {
    /// A store of its own.
    pub fn new() -> Arc<Self> {
        Self::on(Arc::default(), String::new())
    }

    /// The store of this name, shared by all who name it while one of them lives.
    pub fn named(name: &str) -> Arc<Self> {
        let mut stores = locked(&STORES);
        stores.retain(|_, store| store.strong_count() > 0);
        let store = stores.get(name).and_then(Weak::upgrade).unwrap_or_default();
        stores.insert(name.to_owned(), Arc::downgrade(&store));
        Self::on(store, name.to_owned())
    }

    fn on(store: Arc<Store>, name: String) -> Arc<Self> {
        let me = random_process();
        locked(&store).members.insert(me, Member::default());
        Arc::new(Self { store, name, me })
    }

    fn carry(&self, name: &Name, request: &Request) -> Reply {
        let (reply, sent) = locked(&self.store).apply(name, request);
        send(sent);
        reply
    }
}

fn send(sent: Vec<Sent>) {
    for (ear, letter) in sent {
        ear(letter);
    }
}

impl Inside {
    fn apply(&mut self, name: &Name, request: &Request) -> (Reply, Vec<Sent>) {
        let ledger = self.locks.entry(name.clone()).or_default();
        ledger.last = self.last;
        let mut eyes = Eyes { members: &self.members, name, sent: Vec::new() };
        let reply = ledger.apply(now(), request, &mut eyes);
        let sent = eyes.sent;
        self.last = ledger.last;
        if ledger.is_blank() {
            self.locks.remove(name);
        }
        (reply, sent)
    }

    /// Drops a hold whose end nobody has noticed yet.
    fn settle(&mut self, name: &Name) -> Vec<Sent> {
        self.apply(name, &ask_for_nothing()).1
    }
}

struct Eyes<'a> {
    members: &'a HashMap<ProcessId, Member>,
    name: &'a Name,
    sent: Vec<Sent>,
}

impl Witness for Eyes<'_> {
    fn sees(&mut self, owner: &Owner) -> Sight {
        if self.members.contains_key(&owner.holder.process) { Sight::Unknown } else { Sight::Gone }
    }

    fn tell(&mut self, owner: &Owner, message: Message) -> bool {
        let ear = self.members.get(&owner.holder.process).and_then(|member| member.ear.clone());
        let letter = Letter { name: self.name.clone(), owner: *owner, message };
        ear.map(|ear| self.sent.push((ear, letter))).is_some()
    }
}

impl Engine for MemoryEngine {
    fn call<'a>(&'a self, name: &'a Name, request: &'a Request, _limit: Duration) -> BoxFuture<'a, Answer> {
        Box::pin(async move { Ok(self.carry(name, request)) })
    }

    fn call_many<'a>(&'a self, calls: &'a [(Name, Request)], _limit: Duration) -> BoxFuture<'a, Vec<Answer>> {
        Box::pin(async move { calls.iter().map(|(name, request)| Ok(self.carry(name, request))).collect() })
    }

    fn listen(&self, ear: Ear) {
        locked(&self.store).members.entry(self.me).or_default().ear = Some(ear);
    }

    fn process(&self) -> ProcessId {
        self.me
    }

    fn guard_ms(&self, _ttl_ms: u64) -> u64 {
        0
    }

    fn scope(&self) -> String {
        format!("memory:{} (this process only)", self.name)
    }

    fn look<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Look, Fault>> {
        Box::pin(async move {
            let mut inside = locked(&self.store);
            let sent = inside.settle(name);
            let mut eyes = Eyes { members: &inside.members, name, sent: Vec::new() };
            let snapshot = inside
                .locks
                .get(name)
                .map(|ledger| ledger.snapshot(now(), WAITERS_SHOWN, &mut eyes))
                .unwrap_or_default();
            drop(inside);
            send(sent);
            Ok(Look { snapshot, foreign: None, orphaned: false })
        })
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Fault>> {
        Box::pin(async move {
            let mut inside = locked(&self.store);
            let names: Vec<Name> = inside.locks.keys().cloned().collect();
            let sent = names.iter().flat_map(|name| inside.settle(name)).collect();
            let names = inside.locks.keys().cloned().collect();
            drop(inside);
            send(sent);
            Ok(names)
        })
    }

    fn card(&self, process: ProcessId) -> BoxFuture<'_, Result<Option<Card>, Fault>> {
        Box::pin(async move {
            Ok(locked(&self.store).members.get(&process).and_then(|member| member.card.clone()))
        })
    }

    fn post<'a>(&'a self, card: &'a Card) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            locked(&self.store).members.entry(self.me).or_default().card = Some(card.clone());
            Ok(())
        })
    }

    fn job_file(&self, _holder: HolderId) -> Result<Option<OwnedFd>, Fault> {
        Ok(None)
    }
}

impl Drop for MemoryEngine {
    /// Hands over what this process held.
    fn drop(&mut self) {
        let mut inside = locked(&self.store);
        inside.members.remove(&self.me);
        let held = |ledger: &Ledger<Vec<Place>>| matches!(&ledger.occupant, Some(Occupant::Ours(hold)) if hold.owner.holder.process == self.me);
        let mine: Vec<Name> =
            inside.locks.iter().filter(|(_, ledger)| held(ledger)).map(|(name, _)| name.clone()).collect();
        let sent = mine.iter().flat_map(|name| inside.settle(name)).collect();
        drop(inside);
        send(sent);
    }
}
