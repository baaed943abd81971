//! What `tenure lab replay tenure` shows: a holder that overslept, and the resource that refuses it.

use std::thread::sleep;
use std::time::Duration;

use tenure::{Client, Guard};
use tokio::runtime::Runtime;

use crate::LabError;
use crate::replay::key;
use crate::report::tell;
use crate::resource::{Resource, Written};
use crate::servers::{Server, connect};

const TTL: Duration = Duration::from_secs(1);

/// A process that takes the lock: its tasks run only while it does.
struct Process {
    runtime: Runtime,
    client: Client,
}

impl Process {
    fn start(url: &str) -> Result<Self, LabError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client =
            runtime.block_on(Client::connect(url)).map_err(|error| LabError::Server(error.to_string()))?;
        Ok(Self { runtime, client })
    }

    fn acquire(&self, name: &str) -> Result<Guard, LabError> {
        let lock = self.client.lock(name).ttl(TTL);
        self.runtime.block_on(lock.acquire()).map_err(|error| LabError::Server(error.to_string()))
    }
}

pub(crate) fn replay(urls: &[String]) -> Result<u8, LabError> {
    let name = key()?;
    let resource = Resource::beside(&name);
    let server = Server::start(urls, 1, &resource.keys())?.remove(0);
    play(&server, &name, &resource)
}

fn play(server: &Server, name: &str, resource: &Resource) -> Result<u8, LabError> {
    tell!("tenure on {}\n", server.shown());
    let mut connection = connect(server.url())?;
    let (a, b) = (Process::start(server.url())?, Process::start(server.url())?);
    let mut write = |who: &str, guard: &Guard| {
        let number = resource.number(&mut connection)?;
        let written = resource.write(&mut connection, number, Some(guard.fence()))?;
        let answer =
            if written == Written::Refused { "REFUSED: a larger token has been seen" } else { "accepted" };
        tell!("{who} writes with token {}: {answer}", guard.fence());
        Ok::<_, LabError>(written)
    };

    let first = a.acquire(name)?;
    tell!("A has the lock, token {}, lease {:?}", first.fence(), TTL);
    write("A", &first)?;
    tell!("A is stopped for longer than its lease (nothing in it runs, no renewal either)");
    sleep(2 * TTL + Duration::from_millis(200));
    let second = b.acquire(name)?;
    tell!("B has the lock, token {}", second.fence());
    let fresh = write("B", &second)?;
    tell!("A goes on. It could know: holds() is {}. It does not look, and writes:", first.holds());
    let stale = write("A", &first)?;
    let overlapped = first.holds() && second.holds();
    let _ = b.runtime.block_on(second.release());
    let _ = a.runtime.block_on(first.release());

    let kept = fresh == Written::Ok && stale == Written::Refused && !overlapped;
    tell!(
        "\n{}",
        if kept {
            "The stale write was refused, and never did two guards hold."
        } else {
            "This is not what Tenure promises; please report it."
        }
    );
    Ok(u8::from(!kept))
}
