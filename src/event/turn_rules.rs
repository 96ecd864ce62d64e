//! Shapes of the turn's bracket events and of older steering events (spec sections 12, 20 and 21).
//!
//! Only what replay depends on is checked: extra members of a payload are legal, except in `turn/end`, whose forms
//! are closed.

use super::json::Value;
use super::verdict::{Refusal, RefusalKind};

/// `turn/start` has a safe-integer turn of at least 1, and no `trigger`, which older writers put there (spec
/// sections 12 and 20).
pub(super) fn check_turn_start(data: Value<'_>) -> Result<(), Refusal> {
    let [turn, trigger] = data.get_all(["turn", "trigger"]);
    if !turn.is_some_and(is_ordinal) {
        return Err(refuse("turn-start-turn", "turn/start needs an integer turn of at least 1"));
    }
    if trigger.is_some() {
        return Err(refuse("turn-start-trigger", "turn/start has a trigger, as older writers did"));
    }
    Ok(())
}

/// `turn/end` whose data is an object has exactly a turn of at least 1 and a reason in one of its forms; any other
/// data passes (spec section 21, Normalisation).
pub(super) fn check_turn_end(data: Value<'_>) -> Result<(), Refusal> {
    if !data.is_object() {
        return Ok(());
    }
    let reason = turn_end_reason(data)?;
    let bare = match kind_of(reason) {
        Some("aborted") if reason.get("reason").is_some() => return Ok(()),
        Some("error") if reason.get("error").is_some() => return Ok(()),
        Some("aborted" | "error" | "disposed") => {
            return Err(refuse(
                "turn-end-older-reason",
                "turn/end has a reason in the form of older writers",
            ));
        }
        Some("completed" | "blocked" | "max-tokens" | "interrupted") => reason.has_only(&["kind"]),
        _ => true,
    };
    if bare {
        Ok(())
    } else {
        Err(refuse("turn-end-reason", "this kind of turn/end reason has no other members"))
    }
}

/// The reason of a `turn/end` whose data is exactly `{turn, reason}` with a reason that is an object and has a string
/// kind (the empty string passes).
pub(super) fn turn_end_reason(data: Value<'_>) -> Result<Value<'_>, Refusal> {
    let [turn, reason] = data.get_all(["turn", "reason"]);
    let reason = reason.filter(|r| r.get("kind").is_some_and(|kind| kind.is_string()));
    match (turn.filter(|turn| is_ordinal(*turn)), reason) {
        (Some(_), Some(reason)) if data.has_only(&["turn", "reason"]) => Ok(reason),
        _ => Err(refuse(
            "turn-end-members",
            "turn/end needs exactly an integer turn of at least 1 and a reason with a string kind",
        )),
    }
}

/// The kind of a reason, where the format gives it a form of its own.
pub(super) fn kind_of(reason: Value<'_>) -> Option<&'static str> {
    let kind = reason.get("kind")?;
    ["completed", "aborted", "disposed", "error", "blocked", "max-tokens", "interrupted"]
        .into_iter()
        .find(|known| kind.is_str(known))
}

/// Crash recovery reads into the data of `step/start` and `tool/call`, so it is not `null` (spec section 21).
pub(super) fn check_not_null(type_name: &str, data: Value<'_>) -> Result<(), Refusal> {
    if data.is_null() {
        return Err(refuse("data-not-null", format!("{type_name} needs data other than null")));
    }
    Ok(())
}

/// A `steering/message` is a shape of older writers; only an import brings it up to date (spec sections 12 and 20).
pub(super) fn refuse_steering() -> Refusal {
    refuse("steering-message", "steering/message is an event of older writers; append a user/message instead")
}

pub(super) fn refuse(rule: &'static str, message: impl Into<String>) -> Refusal {
    Refusal::new(RefusalKind::EventShape, rule, message)
}

/// A safe integer of at least 1.
pub(super) fn is_ordinal(value: Value<'_>) -> bool {
    value.safe_integer().is_some_and(|n| n >= 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(result: Result<(), Refusal>) -> &'static str {
        result.map_or_else(|refusal| refusal.rule, |()| "")
    }

    #[test]
    fn turn_start_needs_a_turn() {
        let check = |text| rule(check_turn_start(Value::new(text)));
        for good in [r#"{"turn":1}"#, r#"{"turn":2.0,"extra":null}"#] {
            assert_eq!(check(good), "", "{good}");
        }
        for bad in ["null", "[]", "{}", r#"{"turn":0}"#, r#"{"turn":"1"}"#, r#"{"turn":1.5}"#] {
            assert_eq!(check(bad), "turn-start-turn", "{bad}");
        }
        assert_eq!(check(r#"{"turn":1,"trigger":{"kind":"user"}}"#), "turn-start-trigger");
    }

    #[test]
    fn turn_end_forms_are_closed() {
        let check = |text| rule(check_turn_end(Value::new(text)));
        for good in [
            "5",
            "null",
            "[]",
            r#"{"turn":1,"reason":{"kind":"completed"}}"#,
            r#"{"reason":{"kind":"aborted","reason":{"kind":"user"},"x":1},"turn":1}"#,
            r#"{"turn":1,"reason":{"kind":"error","error":5,"x":1}}"#,
            r#"{"turn":1,"reason":{"kind":"","x":1}}"#,
            r#"{"turn":1,"reason":{"kind":"acme/own","x":1}}"#,
        ] {
            assert_eq!(check(good), "", "{good}");
        }
        for (bad, expected) in [
            ("{}", "turn-end-members"),
            (r#"{"turn":1,"reason":"completed"}"#, "turn-end-members"),
            (r#"{"turn":0,"reason":{"kind":"completed"}}"#, "turn-end-members"),
            (r#"{"turn":1,"step":1,"reason":{"kind":"completed"}}"#, "turn-end-members"),
            (r#"{"turn":1,"reason":{"kind":"completed","x":1}}"#, "turn-end-reason"),
            (r#"{"turn":1,"reason":{"kind":"aborted"}}"#, "turn-end-older-reason"),
            (r#"{"turn":1,"reason":{"kind":"disposed"}}"#, "turn-end-older-reason"),
            (r#"{"turn":1,"reason":{"kind":"error","step":1,"message":"m"}}"#, "turn-end-older-reason"),
        ] {
            assert_eq!(check(bad), expected, "{bad}");
        }
    }
}
