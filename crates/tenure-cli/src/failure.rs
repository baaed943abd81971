use crate::exit_codes;
use crate::queue::QueueError;

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

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        let code = match error {
            QueueError::Place(_) => exit_codes::BACKEND,
            QueueError::System { .. } | QueueError::Gone(_) => exit_codes::SYSTEM,
            QueueError::Full(_) | QueueError::Stuck(_) => exit_codes::NOT_ACQUIRED,
            QueueError::TooLong(_) | QueueError::NotText(_) => exit_codes::USAGE,
            QueueError::NoSuchJob(_) | QueueError::Taken(_) | QueueError::Unreadable(..) => {
                exit_codes::NO_SUCH_JOB
            }
        };
        Self { code, text: error.to_string() }
    }
}
