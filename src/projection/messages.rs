//! The message that a surface node stands for (spec section 5), as a slice of its event's payload.
//!
//! Must never copy or re-spell a payload: what the model saw is what was stored.

use super::Projection;
use super::snapshot::{Checkpointed, SectionId, ascending, steps};
use super::surface::{Surface, node_of};
use crate::event::json::Value;
use crate::event::{Admitted, Event};
use crate::ids::Seq;

/// The derived message of an event: the payload of a `user/message`, the `message` member of a `tool/result`
/// and of an `assistant/message` with content. An assistant message without content (a host that only reports
/// usage) and every other event derive none.
#[must_use]
pub fn derived_message<'a>(type_name: &str, data: Value<'a>) -> Option<Value<'a>> {
    match type_name {
        "user/message" => Some(data),
        "tool/result" => data.get("message"),
        "assistant/message" => data.get("message").filter(|m| has_blocks(m.get("content"))),
        _ => None,
    }
}

/// Which events of the surface derive no message, so that messages are counted without their payloads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Messages {
    /// `assistant/message` events without content, ascending.
    silent: Vec<u32>,
}

impl Messages {
    /// Number of messages that the nodes of a surface derive to.
    #[must_use]
    pub fn count(&self, surface: &Surface) -> usize {
        let nodes = surface.nodes();
        if self.silent.is_empty() {
            return nodes.len();
        }
        nodes.iter().filter(|node| self.silent.binary_search(node).is_err()).count()
    }

    pub(super) fn take(&mut self, event: &Event<'_>, parts: &MessageParts<'_>) {
        if event.type_name == "assistant/message" && !parts.has_content() {
            self.silent.push(node_of(event.seq));
        }
    }
}

impl Checkpointed for Messages {
    const ID: SectionId = SectionId { code: 6, version: 1 };
    /// The silent events.
    type Kept = Vec<i32>;

    fn keep(&self) -> Self::Kept {
        steps(&self.silent)
    }

    fn restore(silent: Self::Kept, next_seq: Seq) -> Option<Self> {
        ascending(silent, next_seq).map(|silent| Self { silent })
    }
}

impl Projection for Messages {
    fn apply(&mut self, event: &Admitted<'_>) {
        self.take(event.event(), &MessageParts::of(event.event()));
    }
}

/// What folds read of a message event, found in one walk over its payload and one over its message.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MessageParts<'a> {
    pub(crate) id: Option<Value<'a>>,
    pub(crate) source: Option<Value<'a>>,
    pub(crate) content: Option<Value<'a>>,
}

impl<'a> MessageParts<'a> {
    /// The parts of an event's message; of an event without one, none.
    pub(crate) fn of(event: &'a Event<'_>) -> Self {
        let message = match &*event.type_name {
            "user/message" => Some(event.value()),
            "assistant/message" | "tool/result" => event.value().get("message"),
            _ => None,
        };
        let [id, source, content] =
            message.map(|m| m.get_all(["id", "source", "content"])).unwrap_or_default();
        Self { id, source, content }
    }

    /// The content blocks of type `tool-call`, in order.
    pub(super) fn tool_calls(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let blocks = self.content.into_iter().flat_map(|content| content.elements());
        blocks.filter(|block| block.get("type").is_some_and(|t| t.is_str("tool-call")))
    }

    /// The id of the call that a `tool/result` answers.
    pub(super) fn answered_call(&self) -> Option<Value<'a>> {
        self.source?.get("callId")
    }

    fn has_content(&self) -> bool {
        has_blocks(self.content)
    }
}

fn has_blocks(content: Option<Value<'_>>) -> bool {
    content.is_some_and(|content| content.elements().next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::testing::event;

    #[test]
    fn messages_are_slices_of_the_payload() {
        let derive =
            |type_name, text| derived_message(type_name, Value::new(text)).map(|m| m.raw().to_owned());
        let user = r#"{"id": "u",  "content":[]}"#;
        assert_eq!(derive("user/message", user).as_deref(), Some(user));
        let assistant = r#"{"turn":1,"message":{"content":[ 1.0 ]}}"#;
        assert_eq!(derive("assistant/message", assistant).as_deref(), Some(r#"{"content":[ 1.0 ]}"#));
        assert_eq!(derive("assistant/message", r#"{"message":{"content":[ ]}}"#), None);
        assert_eq!(
            derive("tool/result", r#"{"message":{"content":[]}}"#).as_deref(),
            Some(r#"{"content":[]}"#)
        );
        assert_eq!(derive("turn/start", r#"{"turn":1}"#), None);
    }

    #[test]
    fn silent_events_are_remembered_for_the_count() {
        let mut messages = Messages::default();
        let take =
            |messages: &mut Messages, event: &Event<'_>| messages.take(event, &MessageParts::of(event));
        take(&mut messages, &event(3, "assistant/message", r#"{"message":{"content":[]}}"#));
        take(&mut messages, &event(5, "assistant/message", r#"{"message":{"content":["x"]}}"#));
        take(&mut messages, &event(6, "todo/write", "{}"));
        assert_eq!(messages.silent, [3]);
    }
}
