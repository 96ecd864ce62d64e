//! The gate: the one function that makes an [`Admitted`] event (invariant 5).
//!
//! Every door (append, seed, load, import) runs all rules in one order and differs only where spec section 20 says so.
//! Nothing is changed by a refusal. An event off the surface costs one validating pass and no allocation of its own.

use std::borrow::Cow;

use super::json::{Notes, Value};
use super::legacy::{kind_of_type, legacy_refusal, reason_is_fallback};
use super::model::{Admitted, Candidate, Event, Origin, Placement, Provenance, SessionState, SurfaceOp};
use super::normalise::normalise;
use super::payload::Payload;
use super::verdict::{Refusal, RefusalKind, Warning, WarningKind};
use super::vocabulary::Vocabulary;
use super::{message, request_header, surface_rules, turn_rules};
use crate::ids::Seq;
use crate::limits::{EVENTS_PER_SESSION_MAX, RECORD_BYTES_MAX, SAFE_INTEGER_MAX};

/// Admits the next event of a session, or says why not. The caller folds what is admitted into `state`.
///
/// A candidate without a seq gets the next one.
///
/// # Errors
///
/// The first rule that the event breaks, in the order: legacy kinds, payload text, time, older shapes (brought up to date on
/// import), vocabulary, shape by type, contiguity, limits, surface, provenance, rewrite. [`Refusal::seq`] is set.
pub fn admit<'a>(
    state: &dyn SessionState,
    candidate: Candidate<'a>,
    origin: Origin,
    vocabulary: &Vocabulary,
) -> Result<Admitted<'a>, Refusal> {
    let seq = candidate.seq.unwrap_or(state.next_seq());
    Gate { state, seq, origin, vocabulary, warnings: Vec::new() }
        .admit(candidate)
        .map_err(|refusal| refusal.at_seq(seq))
}

struct Gate<'s> {
    state: &'s dyn SessionState,
    seq: Seq,
    origin: Origin,
    vocabulary: &'s Vocabulary,
    warnings: Vec<Warning>,
}

impl Gate<'_> {
    fn admit<'a>(mut self, candidate: Candidate<'a>) -> Result<Admitted<'a>, Refusal> {
        let Candidate { type_name, seq: _, time, data, surface_op, sources, ignorable } = candidate;
        let data = self.payload(&type_name, data)?;
        check_time(time)?;
        let (type_name, data) = self.up_to_date(type_name, data, surface_op)?;
        self.vocabulary.check(&type_name, ignorable, self.origin)?;
        let result_content = self.shape(&type_name, Value::new(&data))?;
        self.contiguity()?;
        let placement = surface_rules::place(self.state, &type_name, surface_op, sources.is_some())?;
        let sources = sources.map(|sources| self.plain_list(sources)).transpose()?;
        check_size(type_name.len() + data.len() + size_of_val(sources.as_deref().unwrap_or_default()))?;
        let mut rewrite_digest = None;
        if placement != Placement::LogOnly {
            surface_rules::check_sources(self.state, &type_name, self.seq, sources.as_deref(), &placement)?;
            if let Some(content) = result_content {
                rewrite_digest = message::rewrite_digest(Value::new(&data), content);
                surface_rules::check_rewrite(self.state, &placement, rewrite_digest)?;
            }
        }
        let event = Event { type_name, seq: self.seq, time, data, surface_op, sources, ignorable };
        Ok(Admitted { event, placement, rewrite_digest, warnings: self.warnings })
    }

    /// The legacy kinds, then the payload as text: JSON, and lossless (spec sections 3, 6.1 and 20).
    fn payload<'a>(&mut self, type_name: &str, data: Payload<'a>) -> Result<Cow<'a, str>, Refusal> {
        if let Some(kind) = kind_of_type(type_name) {
            return Err(legacy_refusal(kind, None));
        }
        let (data, notes) = data.validated()?;
        if type_name == "request/header" && reason_is_fallback(&Value::new(&data)) {
            return Err(legacy_refusal(RefusalKind::LegacyFallbackReason, None));
        }
        self.lossless(&notes)?;
        Ok(data)
    }

    /// A number without a finite double is refused; negative zero is refused on write and reported on reading; integers
    /// that JavaScript cannot hold and repeated keys are reported (spec section 20).
    fn lossless(&mut self, notes: &Notes) -> Result<(), Refusal> {
        if let Some(at) = notes.non_finite {
            let message = format!("the number at byte {at} of the data is too large for a double");
            return Err(Refusal::new(RefusalKind::NonFinite, "finite-numbers", message));
        }
        if let Some(at) = notes.negative_zero {
            let message = format!("negative zero at byte {at} of the data");
            if matches!(self.origin, Origin::Append | Origin::Seed) {
                return Err(Refusal::new(RefusalKind::NegativeZero, "negative-zero", message));
            }
            self.warn(WarningKind::NegativeZero, message);
        }
        if let Some(at) = notes.unsafe_integer {
            let message =
                format!("the integer at byte {at} of the data is beyond 2^53 - 1: JavaScript rounds it");
            self.warn(WarningKind::UnsafeInteger, message);
        }
        if notes.duplicate_key.is_some() {
            self.warn(WarningKind::DuplicateKey, "an object has a key twice: the last one wins".to_owned());
        }
        Ok(())
    }

    /// On import an older v0 shape becomes the present one; from elsewhere it is refused (spec sections 12 and 20).
    fn up_to_date<'a>(
        &mut self,
        type_name: Cow<'a, str>,
        data: Cow<'a, str>,
        surface_op: Option<SurfaceOp>,
    ) -> Result<(Cow<'a, str>, Cow<'a, str>), Refusal> {
        if self.origin != Origin::Import {
            return if type_name == "steering/message" {
                Err(turn_rules::refuse_steering())
            } else {
                Ok((type_name, data))
            };
        }
        let new = normalise(self.state, self.seq, surface_op, type_name, data)?;
        if new.changed {
            let message = format!("an older shape of {} was brought up to date", new.type_name);
            self.warn(WarningKind::Normalised, message);
        }
        Ok((new.type_name, new.data))
    }

    /// The shapes that replay depends on, by type (spec sections 4, 20 and 21). Answers the content of a tool result.
    fn shape<'d>(&mut self, type_name: &str, data: Value<'d>) -> Result<Option<Value<'d>>, Refusal> {
        match type_name {
            "turn/start" => turn_rules::check_turn_start(data),
            "turn/end" => turn_rules::check_turn_end(data),
            "step/start" | "tool/call" => turn_rules::check_not_null(type_name, data),
            "user/message" => message::check_user(data),
            "assistant/message" => message::check_assistant(data),
            "tool/result" => return message::check_tool_result(data).map(Some),
            "request/header" => {
                if let Some(kind) = request_header::check(data, self.origin)? {
                    self.warn(kind, "the reason of this request/header is none of the four".to_owned());
                }
                Ok(())
            }
            _ => Ok(()),
        }
        .map(|()| None)
    }

    /// Provenance as a plain list. Ranges are a later spelling, which only an import reads (spec section 20).
    fn plain_list<'a>(&mut self, sources: Provenance<'a>) -> Result<Cow<'a, [Seq]>, Refusal> {
        let ranges = match sources {
            Provenance::List(list) => return Ok(list),
            Provenance::Ranges(ranges) => ranges,
        };
        if self.origin != Origin::Import {
            let message = "sourceEventSeqs must be a plain list here; ranges are read on import";
            return Err(Refusal::new(RefusalKind::RangeProvenance, "range-origin", message));
        }
        let list = surface_rules::expanded(&ranges, self.seq)?;
        self.warn(WarningKind::Normalised, "ranges in sourceEventSeqs were written out".to_owned());
        Ok(Cow::Owned(list))
    }

    /// The seq is the next one: a lower one is a second writer, a higher one a loss (spec section 20).
    fn contiguity(&self) -> Result<(), Refusal> {
        let (expected, got) = (self.state.next_seq(), self.seq);
        if got < expected {
            let message = format!(
                "expected seq {expected}, got {got}: this seq is taken, a second writer went another way"
            );
            return Err(Refusal::new(RefusalKind::SeqFork, "seq-contiguity", message));
        }
        if got > expected {
            let message = format!("expected seq {expected}, got {got}: the events between are missing");
            return Err(Refusal::new(RefusalKind::SeqGap, "seq-contiguity", message));
        }
        if got.get() >= EVENTS_PER_SESSION_MAX {
            let message = format!("the session has {got} events, the most that one can have");
            return Err(Refusal::new(RefusalKind::Limit, "events-per-session", message));
        }
        Ok(())
    }

    fn warn(&mut self, kind: WarningKind, message: String) {
        self.warnings.push(Warning { kind, line: None, seq: Some(self.seq), message });
    }
}

/// `time` is a safe integer (spec section 2.1); only a host can say another.
fn check_time(time: i64) -> Result<(), Refusal> {
    if (-SAFE_INTEGER_MAX..=SAFE_INTEGER_MAX).contains(&time) {
        return Ok(());
    }
    let message = "time must be an integer of at most 2^53 - 1 in size: milliseconds since the Unix epoch";
    Err(Refusal::new(RefusalKind::Envelope, "envelope-time", message))
}

/// The event as stored has at most [`RECORD_BYTES_MAX`] bytes.
fn check_size(bytes: usize) -> Result<(), Refusal> {
    if u64::try_from(bytes).is_ok_and(|bytes| bytes <= RECORD_BYTES_MAX) {
        return Ok(());
    }
    let message = format!("an event of {bytes} bytes; at most {RECORD_BYTES_MAX} are kept");
    Err(Refusal::new(RefusalKind::Limit, "record-bytes", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_a_safe_integer() {
        for time in [0, SAFE_INTEGER_MAX, -SAFE_INTEGER_MAX] {
            assert_eq!(check_time(time), Ok(()));
        }
        for time in [i64::MIN, -SAFE_INTEGER_MAX - 1, SAFE_INTEGER_MAX + 1] {
            assert_eq!(check_time(time).map_err(|r| r.rule), Err("envelope-time"));
        }
    }

    #[test]
    fn a_record_is_bounded() {
        let max = usize::try_from(RECORD_BYTES_MAX).unwrap();
        assert_eq!(check_size(max), Ok(()));
        assert_eq!(
            check_size(max + 1).map_err(|r| (r.kind, r.rule)),
            Err((RefusalKind::Limit, "record-bytes"))
        );
    }
}
