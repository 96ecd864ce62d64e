//! Shape of the three message events (spec section 4.1), and the fingerprint that a rewrite must keep (section 5).
//!
//! Content blocks are an open union: their members are checked only where replay depends on them.

use super::json::{Digest, Digester, Value};
use super::verdict::{Refusal, RefusalKind};

/// `user/message`: the data is the message.
pub(super) fn check_user(data: Value<'_>) -> Result<(), Refusal> {
    check_identified(Some(data), "user").map(|_| ())
}

/// `assistant/message`: a message by a model. Crash recovery reads every block, so none is `null` (spec section 21).
pub(super) fn check_assistant(data: Value<'_>) -> Result<(), Refusal> {
    let message = check_identified(data.get("message"), "assistant")?;
    let [kind, provider, model] = message.source.get_all(["kind", "provider", "model"]);
    let named = |value: Option<Value<'_>>| value.is_some_and(|v| v.is_non_empty_string());
    if !(kind.is_some_and(|kind| kind.is_str("model")) && named(provider) && named(model)) {
        return Err(refuse(
            "model-source",
            "an assistant message needs a source of kind model with provider and model",
        ));
    }
    if message.content.elements().any(|block| block.is_null()) {
        return Err(refuse("content-blocks", "a content block of an assistant message is null"));
    }
    Ok(())
}

/// `tool/result`: one tool-result block that answers the call its source names. Answers the content of the block.
pub(super) fn check_tool_result(data: Value<'_>) -> Result<Value<'_>, Refusal> {
    let message = check_identified(data.get("message"), "user")?;
    let [kind, call_id] = message.source.get_all(["kind", "callId"]);
    if !kind.is_some_and(|kind| kind.is_str("tool")) {
        return Err(refuse_result("tool-source", "a tool result needs a source of kind tool"));
    }
    let call_id = call_id.filter(Value::is_non_empty_string).and_then(|id| id.string()).ok_or_else(|| {
        Refusal::new(
            RefusalKind::EmptyCallId,
            "tool-call-id",
            "the call id of a tool result must be a non-empty string",
        )
    })?;
    let mut blocks = message.content.elements();
    let (Some(block), None) = (blocks.next(), blocks.next()) else {
        return Err(refuse_result("one-result-block", "a tool result needs exactly one content block"));
    };
    let [block_type, block_id, content] = block.get_all(["type", "toolCallId", "content"]);
    let content = content.filter(Value::is_array);
    let (true, Some(content)) = (block_type.is_some_and(|t| t.is_str("tool-result")), content) else {
        return Err(refuse_result(
            "result-block",
            "the block of a tool result must be a tool-result with a content array",
        ));
    };
    if block_id.and_then(|id| id.string()) != Some(call_id) {
        return Err(refuse_result(
            "result-call-id",
            "the block and the source of a tool result name different calls",
        ));
    }
    Ok(content)
}

/// Fingerprint of a `tool/result` without the content of its block, by value: what a replacement must keep
/// (spec sections 5 and 21). `content` is what [`check_tool_result`] found in the data.
pub(super) fn rewrite_digest(data: Value<'_>, content: Value<'_>) -> Option<Digest> {
    let content = content.raw();
    let start = offset_in(data.raw(), content)?;
    let (head, tail) = (data.raw().get(..start)?, data.raw().get(start + content.len()..)?);
    let kept = [head, "null", tail].concat();
    let mut digester = Digester::default();
    digester.value(Value::new(&kept));
    Some(digester.finish())
}

struct Message<'a> {
    source: Value<'a>,
    content: Value<'a>,
}

/// What every message has: a non-empty id, its role, a source with a kind, a content array.
fn check_identified<'a>(message: Option<Value<'a>>, wanted_role: &str) -> Result<Message<'a>, Refusal> {
    let message = message
        .filter(Value::is_object)
        .ok_or_else(|| refuse("message-object", "the event has no message object"))?;
    let [id, role, source, content] = message.get_all(["id", "role", "source", "content"]);
    if !id.is_some_and(|id| id.is_non_empty_string()) {
        return Err(refuse("message-id", "the message id must be a non-empty string"));
    }
    if !role.is_some_and(|role| role.is_str(wanted_role)) {
        return Err(refuse("message-role", format!("the message role must be {wanted_role:?}")));
    }
    let source = source
        .filter(|s| s.is_object() && s.get("kind").is_some_and(|kind| kind.is_non_empty_string()))
        .ok_or_else(|| {
            refuse("message-source", "the message source must be an object with a non-empty kind")
        })?;
    let content = content
        .filter(Value::is_array)
        .ok_or_else(|| refuse("message-content", "the message content must be an array"))?;
    Ok(Message { source, content })
}

/// Offset of a slice inside the text that it was taken from.
fn offset_in(text: &str, part: &str) -> Option<usize> {
    let start = (part.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
    text.get(start..start + part.len()).is_some().then_some(start)
}

fn refuse(rule: &'static str, message: impl Into<String>) -> Refusal {
    Refusal::new(RefusalKind::MessageShape, rule, message)
}

fn refuse_result(rule: &'static str, message: &str) -> Refusal {
    Refusal::new(RefusalKind::ToolResultShape, rule, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &str = r#"{"turn":1,"step":1,"message":{"id":"m","role":"user","source":{"kind":"tool","callId":"c"},"content":[{"type":"tool-result","toolCallId":"c","content":[]}]}}"#;
    const ASSISTANT: &str = r#"{"turn":1,"step":1,"message":{"id":"m","role":"assistant","content":["x",1],"source":{"kind":"model","provider":"p","model":"n"}}}"#;
    const USER: &str = r#"{"id":"m","role":"user","content":[null],"source":{"kind":"user"}}"#;

    fn verdict(check: fn(Value<'_>) -> Result<(), Refusal>, text: &str) -> &'static str {
        check(Value::new(text)).map_or_else(|refusal| refusal.rule, |()| "")
    }

    #[test]
    fn whole_messages_pass() {
        assert_eq!(verdict(check_user, USER), "");
        assert_eq!(verdict(check_assistant, ASSISTANT), "");
        assert_eq!(verdict(|data| check_tool_result(data).map(|_| ()), RESULT), "");
    }

    #[test]
    fn each_member_is_needed() {
        for (from, to, rule) in [
            (r#""id":"m""#, r#""id":"""#, "message-id"),
            (r#""id":"m""#, r#""id":1"#, "message-id"),
            (r#""role":"user""#, r#""role":"assistant""#, "message-role"),
            (r#"{"kind":"user"}"#, r#"{"kind":""}"#, "message-source"),
            (r#"{"kind":"user"}"#, "[]", "message-source"),
            (r#""content":[null]"#, r#""content":"x""#, "message-content"),
        ] {
            assert_eq!(verdict(check_user, &USER.replace(from, to)), rule, "{from} -> {to}");
        }
        assert_eq!(verdict(check_user, "null"), "message-object");
        assert_eq!(verdict(check_assistant, "{}"), "message-object");
        for (from, to, rule) in [
            (r#""kind":"model""#, r#""kind":"user""#, "model-source"),
            (r#""provider":"p""#, r#""provider":"""#, "model-source"),
            (r#","model":"n""#, "", "model-source"),
            (r#"["x",1]"#, r#"["x",null]"#, "content-blocks"),
        ] {
            assert_eq!(verdict(check_assistant, &ASSISTANT.replace(from, to)), rule, "{from} -> {to}");
        }
    }

    #[test]
    fn a_result_answers_one_call() {
        for (from, to, rule) in [
            (r#""kind":"tool""#, r#""kind":"user""#, "tool-source"),
            (r#""callId":"c""#, r#""callId":"""#, "tool-call-id"),
            (r#""callId":"c""#, r#""callId":null"#, "tool-call-id"),
            (r#""toolCallId":"c""#, r#""toolCallId":"d""#, "result-call-id"),
            (r#""toolCallId":"c""#, r#""toolCallId":1"#, "result-call-id"),
            (r#""type":"tool-result""#, r#""type":"text""#, "result-block"),
            (r#","content":[]"#, "", "result-block"),
            (r#"}]}}"#, r#"},{}]}}"#, "one-result-block"),
        ] {
            assert_eq!(
                verdict(|data| check_tool_result(data).map(|_| ()), &RESULT.replace(from, to)),
                rule,
                "{from} -> {to}"
            );
        }
        assert_eq!(
            verdict(
                |data| check_tool_result(data).map(|_| ()),
                &RESULT.replace(r#""toolCallId":"c""#, r#""toolCallId":"\u0063""#)
            ),
            ""
        );
    }

    #[test]
    fn the_rewrite_digest_covers_all_but_the_content() {
        let digest = |text: &str| {
            let data = Value::new(text);
            rewrite_digest(data, check_tool_result(data).unwrap()).unwrap()
        };
        let base = digest(RESULT);
        assert_eq!(
            digest(&RESULT.replace(r#""content":[]"#, r#""content":[{"type":"text","text":"x"}]"#)),
            base
        );
        assert_eq!(digest(&RESULT.replace(r#"{"turn":1,"#, r#"{ "turn" : 1.0,"#)), base);
        for (from, to) in [
            (r#""turn":1"#, r#""turn":2"#),
            (r#""id":"m""#, r#""id":"n""#),
            (r#","content":[]}"#, r#","content":[],"isError":false}"#),
            (r#"]}}"#, r#"]},"meta":null}"#),
        ] {
            assert_ne!(digest(&RESULT.replace(from, to)), base, "{from} -> {to}");
        }
    }
}
