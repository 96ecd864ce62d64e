//! Brings the shapes of older v0 writers up to date, on import alone (spec sections 12 and 21).
//!
//! New payload text is spliced from the raw text of the old members, so every value that stays keeps its bytes. A shape
//! that is neither current nor a complete older one is left as it is, for the shape rules to refuse.

use std::borrow::Cow;

use super::json::{JsonString, Value, write_string};
use super::model::{SessionState, SurfaceOp};
use super::turn_rules::{is_ordinal, kind_of, refuse, turn_end_reason};
use super::verdict::{Refusal, RefusalKind};
use crate::ids::Seq;

/// What may change in an event.
pub(super) struct Normalised<'a> {
    pub(super) type_name: Cow<'a, str>,
    pub(super) data: Cow<'a, str>,
    /// Something did change.
    pub(super) changed: bool,
}

/// The event in its present shape.
pub(super) fn normalise<'a>(
    state: &dyn SessionState,
    seq: Seq,
    surface_op: Option<SurfaceOp>,
    type_name: Cow<'a, str>,
    data: Cow<'a, str>,
) -> Result<Normalised<'a>, Refusal> {
    if type_name == "steering/message" {
        let message = steering(state, seq, Value::new(&data))?;
        let identified = user(state, seq, Value::new(&message)).unwrap_or(message);
        return Ok(Normalised { type_name: "user/message".into(), data: identified.into(), changed: true });
    }
    let old = Value::new(&data);
    let new = match &*type_name {
        "turn/start" => turn_start(old),
        "turn/end" => turn_end(old)?,
        "user/message" => user(state, seq, old),
        "assistant/message" => assistant(state, seq, old),
        "tool/result" => tool_result(state, seq, surface_op, old)?,
        _ => None,
    };
    Ok(match new {
        Some(text) => Normalised { type_name, data: text.into(), changed: true },
        None => Normalised { type_name, data, changed: false },
    })
}

/// `{turn, trigger: {kind, ...}}` loses the trigger.
fn turn_start(data: Value<'_>) -> Option<String> {
    let [turn, trigger] = data.get_all(["turn", "trigger"]);
    let turn = turn.filter(|turn| is_ordinal(*turn))?;
    let kind = trigger?.get("kind")?;
    let whole = kind.is_non_empty_string() && data.has_only(&["turn", "trigger"]);
    whole.then(|| format!("{{\"turn\":{}}}", turn.raw()))
}

/// The older reasons: `aborted` without its own reason, `disposed`, `error` without its own error.
fn turn_end(data: Value<'_>) -> Result<Option<String>, Refusal> {
    if !data.is_object() {
        return Ok(None);
    }
    let reason = turn_end_reason(data)?;
    let new = match kind_of(reason) {
        Some("aborted") if reason.has_only(&["kind"]) => {
            Some(r#"{"kind":"aborted","reason":{"kind":"legacy"}}"#.to_owned())
        }
        Some("disposed") if reason.has_only(&["kind"]) => {
            Some(r#"{"kind":"aborted","reason":{"kind":"disposed"}}"#.to_owned())
        }
        Some("error") if reason.get("error").is_none() => error_reason(reason),
        _ => None,
    };
    let turn = data.get("turn").map_or("", |turn| turn.raw());
    Ok(new.map(|reason| format!("{{\"turn\":{turn},\"reason\":{reason}}}")))
}

/// `{kind, step, failure}` with a typed failure, else `{kind, step, message, code?}`.
fn error_reason(reason: Value<'_>) -> Option<String> {
    let [step, failure, message, code] = reason.get_all(["step", "failure", "message", "code"]);
    step?.safe_integer().filter(|step| *step >= 0)?;
    if let Some(failure) = failure.filter(|f| is_failure(*f) && reason.has_only(&["kind", "step", "failure"]))
    {
        return Some(format!("{{\"kind\":\"error\",\"error\":{}}}", failure.raw()));
    }
    let message = message.filter(Value::is_string)?;
    if code.is_some_and(|code| !code.is_string()) || !reason.has_only(&["kind", "step", "message", "code"]) {
        return None;
    }
    let (message, code) = (message.raw(), code.map_or("\"UNKNOWN\"", |code| code.raw()));
    Some(format!("{{\"kind\":\"error\",\"error\":{{\"message\":{message},\"code\":{code}}}}}"))
}

fn is_failure(failure: Value<'_>) -> bool {
    let [message, code, status, delay, request] =
        failure.get_all(["message", "code", "status", "providerRetryAfterMs", "requestId"]);
    let number = |value: Option<Value<'_>>| value.is_none_or(|v| v.number().is_some());
    failure.has_only(&["message", "code", "status", "providerRetryAfterMs", "requestId"])
        && message.is_some_and(|m| m.is_string())
        && code.is_some_and(|c| c.is_string())
        && request.is_none_or(|r| r.is_string())
        && number(status)
        && number(delay)
}

/// The data of the `user/message` that a `steering/message` becomes.
fn steering(state: &dyn SessionState, seq: Seq, data: Value<'_>) -> Result<String, Refusal> {
    let [turn, message, content, source] = data.get_all(["turn", "message", "content", "source"]);
    let counted = turn.is_some_and(|turn| turn.safe_integer().is_some());
    match (message, content, source) {
        (Some(message), None, None)
            if counted && message.is_object() && data.has_only(&["turn", "message"]) =>
        {
            Ok(message.raw().to_owned())
        }
        (None, Some(content), Some(source))
            if turn.is_some() && data.has_only(&["turn", "content", "source"]) =>
        {
            let mut object = ObjectText::default();
            object.member("content", content.raw());
            object.member("source", source.raw());
            object.member("id", &legacy_id(state, seq));
            object.member("role", "\"user\"");
            Ok(object.finish())
        }
        _ => Err(refuse(
            "steering-members",
            "steering/message needs exactly {turn, message} or {turn, content, source}",
        )),
    }
}

/// A message without identity gets its id and role.
fn user(state: &dyn SessionState, seq: Seq, data: Value<'_>) -> Option<String> {
    let [content, source, id, role, message] = data.get_all(["content", "source", "id", "role", "message"]);
    if content.is_none() || source.is_none() || id.or(role).or(message).is_some() {
        return None;
    }
    let mut object = ObjectText::without(data, &[]);
    object.member("id", &legacy_id(state, seq));
    object.member("role", "\"user\"");
    Some(object.finish())
}

/// `{..., content, provenance}` becomes a message by a model.
fn assistant(state: &dyn SessionState, seq: Seq, data: Value<'_>) -> Option<String> {
    let [content, provenance, message] = data.get_all(["content", "provenance", "message"]);
    let (Some(content), Some(provenance), None) = (content, provenance, message) else { return None };
    let mut source = ObjectText::without(provenance, &["kind"]);
    source.member("kind", "\"model\"");
    let mut message = ObjectText::default();
    message.member("id", &legacy_id(state, seq));
    message.member("role", "\"assistant\"");
    message.member("content", content.raw());
    message.member("source", &source.finish());
    let mut object = ObjectText::without(data, &["content", "provenance"]);
    object.member("message", &message.finish());
    Some(object.finish())
}

/// `{..., callId, content, isError}` becomes a message with one result block. A replacement takes over the id of
/// the message at the start of its range.
fn tool_result(
    state: &dyn SessionState,
    seq: Seq,
    surface_op: Option<SurfaceOp>,
    data: Value<'_>,
) -> Result<Option<String>, Refusal> {
    let [call_id, content, is_error, message] = data.get_all(["callId", "content", "isError", "message"]);
    let (Some(call_id), Some(content), Some(is_error), None) = (call_id, content, is_error, message) else {
        return Ok(None);
    };
    let id = match surface_op {
        Some(SurfaceOp::Replace { start, .. }) => {
            let id = state.message_id(start).ok_or_else(|| {
                let message =
                    format!("the tool/result replaces seq {start}, which holds no message with an id");
                Refusal::new(RefusalKind::MessageShape, "replaced-message-id", message)
            })?;
            literal(&id)
        }
        _ => legacy_id(state, seq),
    };
    let mut block = ObjectText::default();
    block.member("type", "\"tool-result\"");
    block.member("toolCallId", call_id.raw());
    block.member("content", content.raw());
    block.member("isError", is_error.raw());
    let mut message = ObjectText::default();
    message.member("id", &id);
    message.member("role", "\"user\"");
    message.member("content", &format!("[{}]", block.finish()));
    message.member("source", &format!("{{\"kind\":\"tool\",\"callId\":{}}}", call_id.raw()));
    let mut object = ObjectText::without(data, &["callId", "content", "isError"]);
    object.member("message", &message.finish());
    Ok(Some(object.finish()))
}

/// `legacy-message:<session id>:<seq>` as a JSON literal.
fn legacy_id(state: &dyn SessionState, seq: Seq) -> String {
    literal(&JsonString::from(&*format!("legacy-message:{}:{seq}", state.session_id())))
}

fn literal(string: &JsonString<'_>) -> String {
    let mut out = String::new();
    write_string(&mut out, string);
    out
}

/// An object spliced from raw members.
#[derive(Default)]
struct ObjectText(String);

impl ObjectText {
    /// The members of `object` but those named.
    fn without(object: Value<'_>, dropped: &[&str]) -> Self {
        let mut text = Self::default();
        for member in object.members().filter(|m| !dropped.iter().any(|name| m.is(name))) {
            text.raw_member(member.key, member.value.raw());
        }
        text
    }

    fn member(&mut self, name: &str, value: &str) {
        self.raw_member(&format!("\"{name}\""), value);
    }

    fn raw_member(&mut self, key: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        self.0.push_str(key);
        self.0.push(':');
        self.0.push_str(value);
    }

    fn finish(mut self) -> String {
        if self.0.is_empty() {
            self.0.push('{');
        }
        self.0.push('}');
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Origin;
    use super::super::tests::{Session, USER};

    /// The data of the event that an import makes of `data`, and its type; or the rule that refuses it.
    fn import(
        session: &mut Session,
        type_name: &str,
        data: &str,
        more: &str,
    ) -> Result<String, &'static str> {
        let line = format!(r#"{{"type":"{type_name}","data":{data}{more}}}"#);
        match session.take(&line, Origin::Import) {
            Err(refusal) => Err(refusal.rule),
            Ok(admitted) => Ok(format!("{} {}", admitted.event().type_name, admitted.event().data)),
        }
    }

    fn alone(type_name: &str, data: &str, more: &str) -> Result<String, &'static str> {
        import(&mut Session::default(), type_name, data, more)
    }

    const APPEND: &str = r#","surfaceOp":"append""#;

    #[test]
    fn a_turn_start_loses_its_trigger() {
        let start = |data| alone("turn/start", data, "");
        assert_eq!(
            start(r#"{"trigger":{"kind":"user","x":1},"turn":2.0}"#),
            Ok(r#"turn/start {"turn":2.0}"#.into())
        );
        for malformed in [
            r#"{"turn":1,"trigger":{"kind":""}}"#,
            r#"{"turn":1,"trigger":null}"#,
            r#"{"turn":1,"trigger":{"kind":"user"},"x":1}"#,
        ] {
            assert_eq!(start(malformed), Err("turn-start-trigger"), "{malformed}");
        }
    }

    #[test]
    fn older_turn_end_reasons_get_their_present_form() {
        let end = |reason: &str| alone("turn/end", &format!(r#"{{"turn":1,"reason":{reason}}}"#), "");
        for (old, new) in [
            (r#"{"kind":"aborted"}"#, r#"{"kind":"aborted","reason":{"kind":"legacy"}}"#),
            (r#"{"kind":"disposed"}"#, r#"{"kind":"aborted","reason":{"kind":"disposed"}}"#),
            (
                r#"{"kind":"error","step":0,"failure":{"message":"m","code":"c","status":5e2}}"#,
                r#"{"kind":"error","error":{"message":"m","code":"c","status":5e2}}"#,
            ),
            (
                r#"{"kind":"error","step":1,"message":"m"}"#,
                r#"{"kind":"error","error":{"message":"m","code":"UNKNOWN"}}"#,
            ),
            (
                r#"{"kind":"error","step":1,"message":"m","code":"C"}"#,
                r#"{"kind":"error","error":{"message":"m","code":"C"}}"#,
            ),
            (r#"{"kind":"error","error":null,"x":1}"#, r#"{"kind":"error","error":null,"x":1}"#),
            (r#"{"kind":"acme","x":1}"#, r#"{"kind":"acme","x":1}"#),
        ] {
            assert_eq!(end(old), Ok(format!(r#"turn/end {{"turn":1,"reason":{new}}}"#)), "{old}");
        }
        for malformed in [
            r#"{"kind":"aborted","x":1}"#,
            r#"{"kind":"disposed","reason":{}}"#,
            r#"{"kind":"error"}"#,
            r#"{"kind":"error","step":-1,"message":"m"}"#,
            r#"{"kind":"error","step":1,"message":"m","code":5}"#,
            r#"{"kind":"error","step":1,"message":"m","x":5}"#,
            r#"{"kind":"error","step":1,"failure":{"message":"m"}}"#,
            r#"{"kind":"error","step":1,"failure":{"message":"m","code":"c","x":1}}"#,
        ] {
            assert_eq!(end(malformed), Err("turn-end-older-reason"), "{malformed}");
        }
    }

    #[test]
    fn steering_becomes_a_user_message() {
        let steer = |data: &str, more: &str| alone("steering/message", data, more);
        let whole = r#"{"id":"m","role":"user","content":[1.0],"source":{"kind":"user"}}"#;
        assert_eq!(
            steer(&format!(r#"{{"turn":-3,"message":{whole}}}"#), APPEND),
            Ok(format!("user/message {whole}"))
        );
        let identified = r#"user/message {"content":[],"source":{"kind":"user"},"id":"legacy-message:s \"1\":0","role":"user"}"#;
        let bare = r#""content":[],"source":{"kind":"user"}"#;
        assert_eq!(steer(&format!(r#"{{"turn":1,{bare}}}"#), APPEND), Ok(identified.into()));
        assert_eq!(steer(&format!(r#"{{"turn":1,"message":{{{bare}}}}}"#), APPEND), Ok(identified.into()));
        assert_eq!(steer(&format!(r#"{{"turn":1,"message":{whole}}}"#), ""), Err("surface-marker"));
        for malformed in
            ["null", r#"{"turn":1.5,"message":{}}"#, r#"{"turn":1,"message":[]}"#, r#"{"message":{}}"#]
        {
            assert_eq!(steer(malformed, APPEND), Err("steering-members"), "{malformed}");
        }
        assert_eq!(steer(&format!(r#"{{"turn":1,{bare},"x":1}}"#), APPEND), Err("steering-members"));
    }

    #[test]
    fn messages_get_an_identity() {
        assert_eq!(
            alone("user/message", r#"{"content":[],"source":{"kind":"user"},"x":-1.50}"#, APPEND),
            Ok(r#"user/message {"content":[],"source":{"kind":"user"},"x":-1.50,"id":"legacy-message:s \"1\":0","role":"user"}"#.into())
        );
        assert_eq!(
            alone("user/message", r#"{"content":[],"source":{"kind":"user"},"role":"user"}"#, APPEND),
            Err("message-id")
        );
        assert_eq!(
            alone(
                "assistant/message",
                r#"{"turn":1,"content":["x"],"provenance":{"provider":"p","kind":"x","model":"m"},"usage":{}}"#,
                APPEND
            ),
            Ok(concat!(
                r#"assistant/message {"turn":1,"usage":{},"message":{"id":"legacy-message:s \"1\":0","role":"assistant","#,
                r#""content":["x"],"source":{"provider":"p","model":"m","kind":"model"}}}"#
            )
            .into())
        );
        assert_eq!(
            alone("assistant/message", r#"{"content":[],"provenance":null}"#, APPEND),
            Err("model-source")
        );
    }

    #[test]
    fn a_result_gets_the_identity_of_what_it_replaces() {
        let old = r#"{"turn":1,"step":1,"callId":"c","content":[],"isError":false}"#;
        let block = r#"[{"type":"tool-result","toolCallId":"c","content":[],"isError":false}]"#;
        let new = |id: &str| {
            format!(
                r#"tool/result {{"turn":1,"step":1,"message":{{"id":"{id}","role":"user","content":{block},"source":{{"kind":"tool","callId":"c"}}}}}}"#
            )
        };
        let mut session = Session::of(&[USER]);
        assert_eq!(import(&mut session, "tool/result", old, APPEND), Ok(new(r#"legacy-message:s \"1\":1"#)));
        let replace = |seq: u64| {
            format!(r#","surfaceOp":{{"op":"replace","start":{seq},"end":{seq}}},"sourceEventSeqs":[{seq}]"#)
        };
        assert_eq!(
            import(&mut session, "tool/result", old, &replace(1)),
            Ok(new(r#"legacy-message:s \"1\":1"#)),
            "the id goes on"
        );
        assert_eq!(import(&mut session, "tool/result", old, &replace(7)), Err("replaced-message-id"));
    }

    #[test]
    fn values_that_stay_keep_their_bytes() {
        let data = r#"{ "content" : [ 1.0 , "\u0061\ud800" ] , "source":{"kind":"user","n":9007199254740993}, "z" : -0.0 }"#;
        let new = alone("user/message", data, APPEND).unwrap();
        for kept in [r#"[ 1.0 , "\u0061\ud800" ]"#, "9007199254740993", "-0.0"] {
            assert!(new.contains(kept), "{kept} in {new}");
        }
    }
}
