//! The three retired kinds of event that no door lets in (spec sections 0 and 6.1).
//!
//! They are looked for in every decodable record before anything else is judged, so that a log of an older
//! writer is called that, whatever else is wrong with it. There is no migration and no fold for them.

use super::json::{Scan, Value};
use super::verdict::{Refusal, RefusalKind};
use crate::ids::Seq;

/// The legacy kind that a whole record is, if it is one.
#[must_use]
pub fn legacy_kind(text: &str, scan: &Scan) -> Option<RefusalKind> {
    let [type_name, data] = scan.last_of(text, ["type", "data"]);
    let type_name = type_name?;
    if type_name.is_str("request/header-delta") {
        Some(RefusalKind::LegacyHeaderDelta)
    } else if type_name.is_str("mode/set") {
        Some(RefusalKind::LegacyModeSet)
    } else if type_name.is_str("request/header") {
        data.filter(reason_is_fallback).map(|_| RefusalKind::LegacyFallbackReason)
    } else {
        None
    }
}

/// The refusal of a legacy record.
#[must_use]
pub fn legacy_refusal(kind: RefusalKind, seq: Option<Seq>) -> Refusal {
    let what = match kind {
        RefusalKind::LegacyHeaderDelta => "a request/header-delta event",
        RefusalKind::LegacyModeSet => "a mode/set event",
        _ => "a request/header event with reason \"fallback\"",
    };
    let message = format!(
        "{what} of a retired writer; such logs have no upgrade path and are read by the release that wrote them"
    );
    let refusal = Refusal::new(kind, "legacy-event", message);
    Refusal { seq, ..refusal }
}

/// The kind of a type that is legacy by its name alone.
pub(super) fn kind_of_type(type_name: &str) -> Option<RefusalKind> {
    match type_name {
        "request/header-delta" => Some(RefusalKind::LegacyHeaderDelta),
        "mode/set" => Some(RefusalKind::LegacyModeSet),
        _ => None,
    }
}

/// Whether a `request/header` carries the retired reason.
pub(super) fn reason_is_fallback(data: &Value<'_>) -> bool {
    let finds = |word: &str| memchr::memmem::find(data.raw().as_bytes(), word.as_bytes()).is_some();
    // Headers are large: a text without the word, and without an escape that could spell it, is not walked.
    let may_say_so = finds("fallback") || finds("\\u");
    may_say_so && data.get("reason").is_some_and(|reason| reason.is_str("fallback"))
}

#[cfg(test)]
mod tests {
    use super::super::json::scan;
    use super::*;

    fn kind(text: &str) -> Option<RefusalKind> {
        legacy_kind(text, &scan(text).unwrap())
    }

    #[test]
    fn the_three_kinds_are_found_in_any_record() {
        use RefusalKind as K;
        assert_eq!(kind(r#"{"x":1,"type":"request/header-delta"}"#), Some(K::LegacyHeaderDelta));
        assert_eq!(kind(r#"{"type":"mode\/set","seq":"?"}"#), Some(K::LegacyModeSet));
        assert_eq!(
            kind(r#"{"type":"request/header","data":{"reason":"fallback"}}"#),
            Some(K::LegacyFallbackReason)
        );
        assert_eq!(kind(r#"{"type":"turn/end","type":"mode/set"}"#), Some(K::LegacyModeSet));
    }

    #[test]
    fn everything_else_is_not_legacy() {
        for text in [
            r#"{"type":"request/header","data":{"reason":"initial"}}"#,
            r#"{"type":"request/header","reason":"fallback","data":null}"#,
            r#"{"type":"turn/end","data":{"reason":"fallback"}}"#,
            r#"{"type":"mode/set","type":"turn/end"}"#,
            r#"["mode/set"]"#,
            "{}",
            "null",
        ] {
            assert_eq!(kind(text), None, "{text}");
        }
    }
}
