//! The request header in force, and the rule by which a producer logs headers (spec section 6).
//!
//! The header in force is the latest snapshot in canonical form; earlier ones are not kept.

use std::sync::OnceLock;

use super::Projection;
use super::snapshot::SectionId;
use crate::event::json::{Value, scan};
use crate::event::{Admitted, CanonicalHeader, HeaderReason};
use crate::ids::Seq;

/// The latest header of a session. Its canonical form is worked out when it is first asked for: a log holds
/// far more headers than anyone asks about.
#[derive(Debug, Clone, Default)]
pub struct RequestHeader {
    seq: Option<Seq>,
    /// The data of the event that carries it.
    data: String,
    canonical: OnceLock<Option<CanonicalHeader>>,
}

impl RequestHeader {
    /// The header in force, canonical; `None` before the first.
    #[must_use]
    pub fn header(&self) -> Option<&CanonicalHeader> {
        self.seq?;
        self.canonical.get_or_init(|| CanonicalHeader::from_data(Value::new(&self.data))).as_ref()
    }

    /// The event that carries it.
    #[must_use]
    pub fn seq(&self) -> Option<Seq> {
        self.seq
    }
}

impl PartialEq for RequestHeader {
    fn eq(&self, other: &Self) -> bool {
        (self.seq, &self.data) == (other.seq, &other.data)
    }
}

impl Eq for RequestHeader {}

impl Projection for RequestHeader {
    fn apply(&mut self, event: &Admitted<'_>) {
        let event = event.event();
        if event.type_name == "request/header" {
            self.seq = Some(event.seq);
            self.data.clear();
            self.data.push_str(&event.data);
            self.canonical = OnceLock::new();
        }
    }
}

/// Checkpoints keep which event carries the header, not the header itself: the log has it.
impl RequestHeader {
    pub(super) const ID: SectionId = SectionId { code: 3, version: 2 };

    /// The data of the event that carries the header in force.
    pub(crate) fn data(&self) -> Option<&str> {
        self.seq.map(|_| self.data.as_str())
    }

    /// The header that the event at `seq` carries, if this can be its data.
    pub(super) fn of(seq: Seq, data: String) -> Option<Self> {
        // Values are walked without looking back: only what was scanned is one.
        scan(&data).is_ok().then(|| Self { seq: Some(seq), data, canonical: OnceLock::new() })
    }
}

/// What a producer writes into a `request/header` event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderDecision {
    /// The `reason` member.
    pub reason: HeaderReason,
    /// Whether to write `"startsSeries":true`.
    pub starts_series: bool,
}

/// Decides, for one run of an agent loop over a session, when a header is logged (spec section 6.2). A process
/// restart or a fork makes a new one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderLogger {
    header_logged: bool,
    last_generation: Option<u64>,
}

impl HeaderLogger {
    /// To be called for every request that is built, retries included. `generation` is the surface's replace
    /// generation just before the messages are derived; `declares_series` is true only for the first attempt
    /// of a step that declared a new message series; `baseline` is the header in force. `None`: log nothing.
    pub fn decide(
        &mut self,
        generation: u64,
        declares_series: bool,
        baseline: Option<&CanonicalHeader>,
        header: &CanonicalHeader,
    ) -> Option<HeaderDecision> {
        let starts_series = declares_series || self.last_generation != Some(generation);
        let decided = |reason, starts_series| Some(HeaderDecision { reason, starts_series });
        let decision = match baseline {
            None if !self.header_logged => decided(HeaderReason::Initial, false),
            Some(_) if !self.header_logged => decided(HeaderReason::Resume, false),
            Some(baseline) if baseline == header => {
                if starts_series {
                    decided(HeaderReason::Series, false)
                } else {
                    None
                }
            }
            _ => decided(HeaderReason::Change, starts_series),
        };
        self.last_generation = Some(generation);
        self.header_logged = true;
        decision
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(system: &str) -> CanonicalHeader {
        let text = format!(r#"{{"config":{{"provider":"p","model":"m"}},"system":"{system}"}}"#);
        CanonicalHeader::new(Value::new(&text)).expect("a header")
    }

    #[test]
    fn one_run_logs_by_the_first_row_that_matches() {
        let (a, b) = (header("a"), header("b"));
        let mut logger = HeaderLogger::default();
        let mut decide = |generation, declares, baseline: Option<&CanonicalHeader>, header| {
            let decision = logger.decide(generation, declares, baseline, header);
            decision.map(|d| (d.reason.as_str(), d.starts_series))
        };
        assert_eq!(decide(0, true, None, &a), Some(("initial", false)));
        assert_eq!(decide(0, false, Some(&a), &a), None);
        assert_eq!(decide(0, false, Some(&a), &b), Some(("change", false)));
        assert_eq!(decide(0, true, Some(&b), &b), Some(("series", false)));
        assert_eq!(decide(0, false, Some(&b), &b), None, "a retry does not declare again");
        assert_eq!(decide(1, false, Some(&b), &b), Some(("series", false)), "a replacement landed");
        assert_eq!(decide(2, false, Some(&b), &a), Some(("change", true)));
        assert_eq!(decide(2, false, None, &a), Some(("change", false)));
    }

    #[test]
    fn a_new_run_over_a_log_with_a_header_resumes() {
        let a = header("a");
        let decision = HeaderLogger::default().decide(3, true, Some(&a), &a);
        assert_eq!(decision, Some(HeaderDecision { reason: HeaderReason::Resume, starts_series: false }));
    }
}
