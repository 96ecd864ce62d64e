//! The event types that this release knows, their codes on disk, and the types that a host adds.
//!
//! Owns the one table of known types (spec section 2.2). Codes are stored: the table only ever grows at its end,
//! and no entry moves or changes its spelling.

use std::collections::BTreeSet;

use super::model::Origin;
use super::verdict::{Refusal, RefusalKind};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::TYPE_NAME_BYTES_MAX;

macro_rules! known_types {
    ($($code:literal = $name:literal,)+) => {
        /// Code of a known type, for the disk.
        #[must_use]
        pub fn code_of(name: &str) -> Option<u16> {
            match name {
                $($name => Some($code),)+
                _ => None,
            }
        }

        /// Name of the known type with this code.
        #[must_use]
        pub const fn name_of(code: u16) -> Option<&'static str> {
            match code {
                $($code => Some($name),)+
                _ => None,
            }
        }

        /// The known types in the order of their codes, which count from 1.
        pub const KNOWN_TYPES: &[&str] = &[$($name,)+];
    };
}

known_types! {
    1 = "agent-preset/selected",
    2 = "agent/inbox/spliced",
    3 = "approval/asked",
    4 = "approval/decided",
    5 = "approval/policy",
    6 = "assistant/chunk",
    7 = "assistant/message",
    8 = "command/done",
    9 = "command/run",
    10 = "compaction/end",
    11 = "compaction/prune",
    12 = "compaction/start",
    13 = "compaction/summary",
    14 = "feedback/record",
    15 = "goal/change",
    16 = "hook/invoked",
    17 = "hook/result",
    18 = "llm/retry",
    19 = "llm/retry-started",
    20 = "permission/preset",
    21 = "plan/mode",
    22 = "request/context",
    23 = "request/header",
    24 = "sandbox/mode",
    25 = "schedule/change",
    26 = "session/end-seed",
    27 = "session/title",
    28 = "session/title-llm-request",
    29 = "step/end",
    30 = "step/start",
    31 = "subagent/descriptor",
    32 = "team/member",
    33 = "team/message/delivered",
    34 = "team/message/queued",
    35 = "team/task",
    36 = "todo/write",
    37 = "tool-workflow/agent-end",
    38 = "tool-workflow/agent-start",
    39 = "tool-workflow/run-end",
    40 = "tool-workflow/run-start",
    41 = "tool/call",
    42 = "tool/code-dispatch",
    43 = "tool/code-dispatch-start",
    44 = "tool/result",
    45 = "turn/end",
    46 = "turn/start",
    47 = "user/message",
    48 = "web/deepseek-search-llm-request",
}

/// Names that mean something else in a log of this format: the header's tag, the tags of packed rows
/// (spec section 13) and the types of older v0 writers (spec sections 6.1 and 12).
const RESERVED_TYPES: &[&str] = &[
    "session",
    "text-chunks",
    "reasoning-chunks",
    "tool-call-chunks",
    "request/header-delta",
    "mode/set",
    "steering/message",
];

/// Whether events of this type join the surface (spec section 5). All others are log-only.
#[must_use]
pub fn is_surface_type(name: &str) -> bool {
    matches!(name, "user/message" | "assistant/message" | "tool/result")
}

/// The types that an event may have: the known ones and those that a host or an importer registered.
///
/// A registered type is log-only: its events carry neither a surface op nor sources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vocabulary {
    registered: BTreeSet<Box<str>>,
}

impl Vocabulary {
    /// Adds a type. Adding it again changes nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for an empty name, one longer than
    /// [`TYPE_NAME_BYTES_MAX`], and one that this format gives
    /// a meaning of its own.
    pub fn register(&mut self, name: &str) -> Result<()> {
        let fault = if name.is_empty() {
            "the name is empty"
        } else if name.len() > TYPE_NAME_BYTES_MAX {
            "the name is too long"
        } else if code_of(name).is_some() {
            "the format knows this type already"
        } else if RESERVED_TYPES.contains(&name) {
            "the format reserves this name"
        } else {
            self.registered.insert(name.into());
            return Ok(());
        };
        let shown: String = name.chars().take(80).collect();
        Err(Error::new(ErrorKind::Invalid, format!("register event type {shown:?}: {fault}")))
    }

    /// Whether the type is known or registered.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        code_of(name).is_some() || self.registered.contains(name)
    }

    /// The registered types, sorted.
    pub fn registered(&self) -> impl Iterator<Item = &str> {
        self.registered.iter().map(|name| &**name)
    }

    /// Refuses a type outside the vocabulary whose event is not ignorable (spec sections 2.2 and 20). What a store holds was
    /// in the vocabulary when it was appended: loading it again needs no registration.
    pub(super) fn check(
        &self,
        name: &str,
        ignorable: bool,
        origin: Origin,
    ) -> std::result::Result<(), Refusal> {
        if name.len() > TYPE_NAME_BYTES_MAX {
            let message =
                format!("event type of {} bytes; at most {TYPE_NAME_BYTES_MAX} are kept", name.len());
            return Err(Refusal::new(RefusalKind::Limit, "type-name-bytes", message));
        }
        if ignorable || origin == Origin::Load || self.contains(name) {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalKind::UnsupportedEvent,
            "known-type",
            format!(
                "event type {name:?} is unknown to this release and not marked ignorable; a newer writer or a \
                 plugin wrote it: register the type or use a matching release"
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_are_one_dense_table() {
        assert_eq!(KNOWN_TYPES.len(), 48);
        for (code, name) in (1..).zip(KNOWN_TYPES) {
            assert_eq!((code_of(name), name_of(code)), (Some(code), Some(*name)));
        }
        assert_eq!((name_of(0), name_of(49), code_of("mode/set")), (None, None, None));
        assert_eq!((code_of("assistant/chunk"), code_of("user/message")), (Some(6), Some(47)));
    }

    #[test]
    fn registration_refuses_names_that_have_a_meaning() {
        let mut vocabulary = Vocabulary::default();
        for name in
            RESERVED_TYPES.iter().chain(KNOWN_TYPES).chain(&["", &*"x".repeat(TYPE_NAME_BYTES_MAX + 1)])
        {
            assert_eq!(vocabulary.register(name).unwrap_err().kind(), ErrorKind::Invalid, "{name}");
        }
        vocabulary.register("acme/note").unwrap();
        vocabulary.register("acme/note").unwrap();
        assert!(vocabulary.contains("acme/note") && !vocabulary.contains("acme/other"));
        assert_eq!(vocabulary.registered().collect::<Vec<_>>(), ["acme/note"]);
    }

    #[test]
    fn unknown_types_pass_only_when_ignorable_registered_or_stored() {
        let mut vocabulary = Vocabulary::default();
        let refusal = vocabulary.check("acme/note", false, Origin::Import).unwrap_err();
        assert_eq!((refusal.kind, refusal.rule), (RefusalKind::UnsupportedEvent, "known-type"));
        assert!(vocabulary.check("acme/note", true, Origin::Append).is_ok());
        assert!(vocabulary.check("acme/note", false, Origin::Load).is_ok(), "it was registered once");
        vocabulary.register("acme/note").unwrap();
        assert!(vocabulary.check("acme/note", false, Origin::Append).is_ok());
        let long = "x".repeat(TYPE_NAME_BYTES_MAX + 1);
        assert_eq!(vocabulary.check(&long, true, Origin::Load).unwrap_err().kind, RefusalKind::Limit);
    }
}
