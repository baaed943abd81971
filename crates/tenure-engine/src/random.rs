use tenure_core::{HolderId, Owner, ProcessId};

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system has randomness");
    bytes
}

/// A new identity for a process.
pub fn random_process() -> ProcessId {
    ProcessId(u64::from_le_bytes(random()))
}

/// A new owner, for one acquisition.
pub fn random_owner(holder: HolderId) -> Owner {
    Owner { holder, secret: u128::from_le_bytes(random()) }
}

/// Randomness for many owners in one call to the system.
pub fn random_secrets() -> Vec<u128> {
    random::<1024>()
        .chunks_exact(16)
        .map(|bytes| u128::from_le_bytes(bytes.try_into().expect("16 bytes")))
        .collect()
}
