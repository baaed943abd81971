//! Whatever is read as a name or as an identity is one or is refused. The corpus in `__fuzz__` is replayed by every test
//! run, with some random variations; `cargo xtask fuzz names` goes on for longer.

use tenure_core::{HolderId, NAME_BYTES_MAX, Name, Owner, ProcessId};

#[test]
fn names() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Ok(name) = Name::new(text) {
            assert!(name.as_str() == text && text.len() <= NAME_BYTES_MAX);
        }
        // Only the canonical text is an identity: what is read is written the same.
        if let Ok(owner) = text.parse::<Owner>() {
            assert_eq!(owner.to_string(), text);
        }
        if let Ok(holder) = text.parse::<HolderId>() {
            assert_eq!(holder.to_string(), text);
        }
        if let Ok(process) = text.parse::<ProcessId>() {
            assert_eq!(process.to_string(), text);
        }
    });
}
