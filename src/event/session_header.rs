//! The session header: what a session is, as hosts set it and as the first line of a JSONL log spells it (spec sections
//! 1 and 20).
//!
//! Unknown members of a header line are dropped, as the format says; everything else is kept without loss.

use std::fmt::Display;

use super::envelope::not_json;
use super::header_line::parse_usual;
use super::json::{JsonString, Value, validate, write_string};
use super::verdict::{Refusal, RefusalKind};
use crate::limits::{SAFE_INTEGER_MAX, SESSION_ID_BYTES_MAX};

/// The header of a session, format version 0.
///
/// Hosts fill the fields and have them checked with [`validate`](Self::validate).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionHeader {
    /// The session's id: 1 to [`SESSION_ID_BYTES_MAX`] bytes.
    pub id: String,
    /// Time of creation: milliseconds since the Unix epoch, not negative.
    pub created_at: i64,
    /// Working directory: an absolute path in POSIX or Windows style.
    pub cwd: Option<JsonString<'static>>,
    /// Id of the session that this one was forked from or spawned by.
    pub parent_session: Option<JsonString<'static>>,
    /// Number of leading events that were inherited from a parent.
    pub seed_length: Option<u64>,
    /// The session belongs to a subagent (`"origin":"subagent"`).
    pub subagent: bool,
    /// How many delegations lead to this session. Absent means 0 and is written as 0.
    pub delegation_depth: Option<u64>,
    /// Name of the agent's preset.
    pub agent_preset: Option<JsonString<'static>>,
}

impl SessionHeader {
    /// A header with nothing but an id and a time of creation, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn new(id: impl Into<String>, created_at: i64) -> Self {
        Self {
            id: id.into(),
            created_at,
            cwd: None,
            parent_session: None,
            seed_length: None,
            subagent: false,
            delegation_depth: None,
            agent_preset: None,
        }
    }

    /// Checks the fields against spec section 1.1.
    ///
    /// # Errors
    ///
    /// `header` for a field that breaks a rule, `limit` for an id that is too long.
    pub fn validate(&self) -> Result<(), Refusal> {
        if self.id.is_empty() {
            return Err(refuse("header-id", "the session id must not be empty"));
        }
        if self.id.len() > SESSION_ID_BYTES_MAX {
            let message =
                format!("a session id of {} bytes; at most {SESSION_ID_BYTES_MAX} are kept", self.id.len());
            return Err(Refusal::new(RefusalKind::Limit, "session-id-bytes", message));
        }
        if !(0..=SAFE_INTEGER_MAX).contains(&self.created_at) {
            return Err(refuse("header-created-at", "createdAt must be an integer from 0 to 2^53 - 1"));
        }
        if !self.cwd.as_ref().is_none_or(is_absolute) {
            return Err(refuse("header-cwd", "cwd must be an absolute path"));
        }
        if !self.seed_length.is_none_or(is_safe) {
            return Err(refuse("header-seed-length", "seedLength must be an integer from 0 to 2^53 - 1"));
        }
        if !self.delegation_depth.is_none_or(is_safe) {
            return Err(refuse(
                "header-delegation-depth",
                "delegationDepth must be an integer from 0 to 2^53 - 1",
            ));
        }
        Ok(())
    }

    /// Appends the header as the first line of a JSONL log, without a line feed (spec section 1.2).
    pub fn write_json(&self, out: &mut String) {
        out.push_str("{\"type\":\"session\",\"version\":0,\"id\":");
        write_string(out, &JsonString::from(&*self.id));
        out.push_str(&format!(",\"createdAt\":{}", self.created_at));
        let mut string = |key: &str, value: &Option<JsonString<'_>>| {
            if let Some(value) = value {
                out.push_str(key);
                write_string(out, value);
            }
        };
        string(",\"cwd\":", &self.cwd);
        string(",\"parentSession\":", &self.parent_session);
        if let Some(length) = self.seed_length {
            out.push_str(&format!(",\"seedLength\":{length}"));
        }
        if self.subagent {
            out.push_str(",\"origin\":\"subagent\"");
        }
        out.push_str(&format!(",\"delegationDepth\":{}", self.delegation_depth.unwrap_or(0)));
        if let Some(preset) = &self.agent_preset {
            out.push_str(",\"agentPreset\":");
            write_string(out, preset);
        }
        out.push('}');
    }
}

/// All members that mean something, or once did.
const MEMBERS: [&str; 12] = [
    "version",
    "type",
    "id",
    "createdAt",
    "delegationDepth",
    "origin",
    "agentPreset",
    "sandboxMode",
    "approvalPolicy",
    "cwd",
    "parentSession",
    "seedLength",
];

/// Reads the first record of a log.
///
/// # Errors
///
/// In this order: `corrupt-record` for text that is not JSON; `newer-format` or `older-format` for another version,
/// whatever the rest looks like; `no-header` for a record that is no header; `header` for a member that breaks a rule;
/// `limit` for an id that is too long.
pub fn parse_header_line(text: &str) -> Result<SessionHeader, Refusal> {
    match parse_usual(text) {
        Some(header) => header.validate().map(|()| header),
        None => parse_any(text),
    }
}

/// As [`parse_header_line`], whatever the text looks like.
pub(super) fn parse_any(text: &str) -> Result<SessionHeader, Refusal> {
    validate(text).map_err(|fault| not_json(&fault))?;
    let [version, tag, id, created_at, depth, origin, preset, sandbox, approval, cwd, parent, seed_length] =
        Value::new(text).get_all(MEMBERS);
    check_version(version)?;
    if !tag.is_some_and(|tag| tag.is_str("session")) {
        let message =
            "the first record is no session header: the header is missing, or this is no session log";
        return Err(Refusal::new(RefusalKind::NoHeader, "header-first", message));
    }
    let mut header = line_shape([version, id, created_at, depth, origin, preset])?;
    if sandbox.or(approval).is_some() {
        return Err(refuse(
            "header-retired-keys",
            "sandboxMode and approvalPolicy are retired members of a header",
        ));
    }
    late_members([cwd, parent, seed_length], &mut header)?;
    header.validate()?;
    Ok(header)
}

/// A numeric version other than 0 is another format, decided before any shape (spec sections 1.2 and 2.3).
fn check_version(version: Option<Value<'_>>) -> Result<(), Refusal> {
    version.and_then(|v| v.number()).map_or(Ok(()), |version| check_format_version(version, 0.0))
}

/// Refuses a version that is not the `zero` of its type.
pub(crate) fn check_format_version<V: PartialOrd + Display>(version: V, zero: V) -> Result<(), Refusal> {
    if version > zero {
        let message = format!(
            "written by a newer harness (format version {version}); this release reads version 0: upgrade it"
        );
        return Err(Refusal::new(RefusalKind::NewerFormat, "format-version", message));
    }
    if version < zero {
        let message =
            format!("format version {version} is older than version 0, and there is no upgrade path");
        return Err(Refusal::new(RefusalKind::OlderFormat, "format-version", message));
    }
    Ok(())
}

/// What the line must have (spec section 1.2, step 3). Of all numbers only these two refuse negative zero.
fn line_shape(members: [Option<Value<'_>>; 6]) -> Result<SessionHeader, Refusal> {
    let [version, id, created_at, depth, origin, preset] = members;
    if version.and_then(|v| v.safe_integer()) != Some(0) {
        return Err(refuse("header-version", "version must be the number 0"));
    }
    let id = id
        .and_then(|id| id.string())
        .ok_or_else(|| refuse("header-id", "the session id must be a string"))?;
    let id = id.to_str().ok_or_else(|| refuse("header-id", "the session id must be valid Unicode"))?;
    let created_at = created_at.filter(is_not_negative_zero).and_then(|n| n.safe_integer());
    let mut header = SessionHeader::new(id, created_at.unwrap_or(-1));
    header.delegation_depth = depth.filter(is_not_negative_zero).and_then(natural);
    if created_at.is_none() {
        return Err(refuse("header-created-at", "createdAt must be an integer from 0 to 2^53 - 1"));
    }
    if header.delegation_depth.is_none() {
        return Err(refuse(
            "header-delegation-depth",
            "delegationDepth must be an integer from 0 to 2^53 - 1",
        ));
    }
    if !origin.is_none_or(|origin| origin.is_str("subagent")) {
        return Err(refuse("header-origin", "origin must be \"subagent\" or absent"));
    }
    header.subagent = origin.is_some();
    header.agent_preset =
        string_member(preset, "header-agent-preset", "agentPreset must be a string or absent")?;
    Ok(header)
}

/// The optional members whose types spec section 1.1 states.
fn late_members(members: [Option<Value<'_>>; 3], header: &mut SessionHeader) -> Result<(), Refusal> {
    let [cwd, parent, seed_length] = members;
    header.cwd = string_member(cwd, "header-cwd", "cwd must be an absolute path or absent")?;
    header.parent_session =
        string_member(parent, "header-parent-session", "parentSession must be a string or absent")?;
    header.seed_length = seed_length.and_then(natural);
    if seed_length.is_some() && header.seed_length.is_none() {
        return Err(refuse("header-seed-length", "seedLength must be an integer from 0 to 2^53 - 1"));
    }
    Ok(())
}

fn string_member(
    value: Option<Value<'_>>,
    rule: &'static str,
    message: &str,
) -> Result<Option<JsonString<'static>>, Refusal> {
    match value {
        None => Ok(None),
        Some(value) => match value.string() {
            Some(string) => Ok(Some(string.into_owned())),
            None => Err(refuse(rule, message)),
        },
    }
}

fn natural(value: Value<'_>) -> Option<u64> {
    value.safe_integer().and_then(|n| u64::try_from(n).ok())
}

fn is_not_negative_zero(value: &Value<'_>) -> bool {
    !value.number().is_some_and(|n| n == 0.0 && n.is_sign_negative())
}

fn is_safe(n: u64) -> bool {
    i64::try_from(n).is_ok_and(|n| n <= SAFE_INTEGER_MAX)
}

/// Absolute in the style of POSIX or of Windows, on every host (spec section 20).
fn is_absolute(path: &JsonString<'_>) -> bool {
    match path.as_bytes() {
        [b'/' | b'\\', ..] => true,
        [drive, b':', b'/' | b'\\', ..] => drive.is_ascii_alphabetic(),
        _ => false,
    }
}

fn refuse(rule: &'static str, message: &str) -> Refusal {
    Refusal::new(RefusalKind::Header, rule, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"type":"session","version":0,"id":"s","createdAt":1,"delegationDepth":0}"#;

    fn verdict(line: &str) -> (&'static str, &'static str) {
        parse_header_line(line).map_or_else(|refusal| (refusal.kind.as_str(), refusal.rule), |_| ("", ""))
    }

    fn written(header: &SessionHeader) -> String {
        let mut out = String::new();
        header.write_json(&mut out);
        out
    }

    #[test]
    fn a_full_line_reads_and_writes_in_the_order_of_the_format() {
        let line = r#"{"type":"session","version":0,"id":"s \"1\"","createdAt":5,"cwd":"C:\\w\ud800","parentSession":"p","seedLength":3,"origin":"subagent","delegationDepth":2,"agentPreset":""}"#;
        let header = parse_header_line(line).unwrap();
        assert_eq!((&*header.id, header.seed_length, header.subagent), ("s \"1\"", Some(3), true));
        assert_eq!(written(&header), line);
        let bare = SessionHeader::new("s", 1);
        bare.validate().unwrap();
        assert_eq!(written(&bare), LINE);
    }

    #[test]
    fn unknown_members_are_dropped_and_the_last_of_repeated_ones_wins() {
        let line = LINE.replace(r#""id":"s""#, r#""id":1,"x":{"y":-0},"id":"s""#);
        assert_eq!(written(&parse_header_line(&line).unwrap()), LINE);
    }

    #[test]
    fn numbers_are_judged_by_value_and_two_of_them_refuse_negative_zero() {
        for (from, to, expected) in [
            (r#""createdAt":1"#, r#""createdAt":1.0"#, ""),
            (r#""createdAt":1"#, r#""createdAt":0.5"#, "header-created-at"),
            (r#""createdAt":1"#, r#""createdAt":-0"#, "header-created-at"),
            (r#""createdAt":1"#, r#""createdAt":-1"#, "header-created-at"),
            (r#""createdAt":1"#, r#""createdAt":1e400"#, "header-created-at"),
            (r#""createdAt":1"#, r#""createdAt":9007199254740992"#, "header-created-at"),
            (r#""delegationDepth":0"#, r#""delegationDepth":-0.0"#, "header-delegation-depth"),
            (r#""delegationDepth":0"#, r#""delegationDepth":null"#, "header-delegation-depth"),
            (r#","delegationDepth":0"#, "", "header-delegation-depth"),
            (r#""version":0"#, r#""version":-0"#, ""),
            (r#""version":0"#, r#""version":"0""#, "header-version"),
            (r#""version":0,"#, "", "header-version"),
            (r#""id":"s""#, r#""id":"s","seedLength":-0"#, ""),
            (r#""id":"s""#, r#""id":"s","seedLength":1.5"#, "header-seed-length"),
            (r#""id":"s""#, r#""id":"s","seedLength":null"#, "header-seed-length"),
        ] {
            assert_eq!(verdict(&LINE.replace(from, to)).1, expected, "{to}");
        }
    }

    #[test]
    fn strings_have_their_rules() {
        let long = format!(r#""id":"{}""#, "x".repeat(SESSION_ID_BYTES_MAX + 1));
        for (to, expected) in [
            (r#""id":"""#, ("header", "header-id")),
            (r#""id":7"#, ("header", "header-id")),
            (r#""id":"\ud800""#, ("header", "header-id")),
            (&*long, ("limit", "session-id-bytes")),
            (r#""id":"s","cwd":"a/b""#, ("header", "header-cwd")),
            (r#""id":"s","cwd":"C:a""#, ("header", "header-cwd")),
            (r#""id":"s","cwd":null"#, ("header", "header-cwd")),
            (r#""id":"s","cwd":"/a""#, ("", "")),
            (r#""id":"s","cwd":"c:/a""#, ("", "")),
            (r#""id":"s","cwd":"\\\\host\\share""#, ("", "")),
            (r#""id":"s","parentSession":1"#, ("header", "header-parent-session")),
            (r#""id":"s","origin":"user""#, ("header", "header-origin")),
            (r#""id":"s","origin":null"#, ("header", "header-origin")),
            (r#""id":"s","agentPreset":null"#, ("header", "header-agent-preset")),
            (r#""id":"s","sandboxMode":null"#, ("header", "header-retired-keys")),
            (r#""id":"s","approvalPolicy":"ask""#, ("header", "header-retired-keys")),
        ] {
            assert_eq!(verdict(&LINE.replace(r#""id":"s""#, to)), expected, "{to}");
        }
    }

    #[test]
    fn another_version_is_told_before_anything_else() {
        for (line, expected) in [
            (r#"{"version":2}"#, "newer-format"),
            (r#"{"type":"session","version":0.5,"id":7}"#, "newer-format"),
            (r#"{"type":"turn/start","version":-1}"#, "older-format"),
            (r#"{"type":"turn/start","seq":0,"time":0,"data":{}}"#, "no-header"),
            (r#"{"version":0,"id":"s","createdAt":1,"delegationDepth":0}"#, "no-header"),
            ("[]", "no-header"),
            ("null", "no-header"),
            ("{", "corrupt-record"),
            ("", "corrupt-record"),
        ] {
            assert_eq!(verdict(line).0, expected, "{line}");
        }
    }

    #[test]
    fn hosts_get_the_same_rules() {
        let rule = |change: fn(&mut SessionHeader)| {
            let mut header = SessionHeader::new("s", 1);
            change(&mut header);
            header.validate().map_or_else(|refusal| refusal.rule, |()| "")
        };
        assert_eq!(rule(|h| h.id.clear()), "header-id");
        assert_eq!(rule(|h| h.id = "x".repeat(SESSION_ID_BYTES_MAX)), "");
        assert_eq!(rule(|h| h.id = "x".repeat(SESSION_ID_BYTES_MAX + 1)), "session-id-bytes");
        assert_eq!(rule(|h| h.created_at = -1), "header-created-at");
        assert_eq!(rule(|h| h.cwd = Some("tmp".into())), "header-cwd");
        assert_eq!(rule(|h| h.seed_length = Some(1 << 53)), "header-seed-length");
        assert_eq!(rule(|h| h.delegation_depth = Some(u64::MAX)), "header-delegation-depth");
        assert_eq!(rule(|h| h.agent_preset = Some("p".into())), "");
    }
}
