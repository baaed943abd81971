use crate::exit_codes;

/// Why a command did not do what it was asked: a text for people and a code for programs.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) text: String,
}

impl Failure {
    /// The caller has to change something.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { code: exit_codes::USAGE, text: text.into() }
    }

    /// The store is out of reach or refuses.
    pub(crate) fn backend(text: impl Into<String>) -> Self {
        Self { code: exit_codes::BACKEND, text: text.into() }
    }
}

/// What the operating system refuses although it should work.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self { code: exit_codes::SYSTEM, text: format!("the operating system refused something: {error}") }
    }
}
