//! Tokens that a session's own requests took, as its events report them.
//!
//! A request is counted once for each (turn, step), however often it was tried or reported: the figure of its
//! `assistant/message` stands over the samples of the stream, a later figure over an earlier one. What a session inherited
//! through a seed was another session's work. Memory grows with the number of steps, not of events.

use std::collections::BTreeMap;

use super::Projection;
use crate::event::json::Value;
use crate::event::{Admitted, Event};

/// Numbers of tokens (spec section 4).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Tokens of the requests, cached ones included as the provider counts them.
    pub input: u64,
    /// Tokens of the answers, reasoning included.
    pub output: u64,
    /// Of the input, those read from a cache.
    pub cache_read: u64,
    /// Of the input, those written to a cache.
    pub cache_write: u64,
    /// Of the output, those of reasoning.
    pub reasoning: u64,
}

/// The fold of a session's token usage.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    /// Seq of the first event that is not inherited.
    own_from: u64,
    /// By turn and step.
    steps: BTreeMap<(i64, i64), Figure>,
}

/// The figure that stands for a step.
#[derive(Debug, Clone, Copy)]
struct Figure {
    usage: TokenUsage,
    of_message: bool,
}

impl Usage {
    /// Of a session whose first `seed_length` events are inherited (its header says so).
    #[must_use]
    pub fn new(seed_length: Option<u64>) -> Self {
        Self { own_from: seed_length.unwrap_or_default(), steps: BTreeMap::new() }
    }

    /// Steps that reported usage.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps.len() as u64
    }

    /// The sum over all steps.
    #[must_use]
    pub fn total(&self) -> TokenUsage {
        self.steps.values().fold(TokenUsage::default(), |sum, figure| sum.plus(&figure.usage))
    }

    /// Takes in the next event. One without turn and step in numbers belongs to no step.
    pub fn take(&mut self, event: &Event<'_>) {
        if event.seq.get() < self.own_from {
            return;
        }
        let (usage, of_message) = match &*event.type_name {
            "assistant/message" => (event.value().get("usage"), true),
            "assistant/chunk" => (sample(event.value()), false),
            _ => return,
        };
        let Some(usage) = usage.filter(Value::is_object) else { return };
        let [turn, step] = event.value().get_all(["turn", "step"]);
        let number = |value: Option<Value<'_>>| value?.safe_integer();
        let (Some(turn), Some(step)) = (number(turn), number(step)) else { return };
        let figure = Figure { usage: TokenUsage::of(usage), of_message };
        let standing = self.steps.entry((turn, step)).or_insert(figure);
        if of_message || !standing.of_message {
            *standing = figure;
        }
    }
}

impl Projection for Usage {
    fn apply(&mut self, event: &Admitted<'_>) {
        self.take(event.event());
    }
}

impl TokenUsage {
    /// A figure that is no natural number counts as none.
    fn of(usage: Value<'_>) -> Self {
        let members = usage.get_all([
            "inputTokens",
            "outputTokens",
            "cacheReadTokens",
            "cacheWriteTokens",
            "reasoningTokens",
        ]);
        let natural = |value: Value<'_>| u64::try_from(value.safe_integer()?).ok();
        let [input, output, cache_read, cache_write, reasoning] =
            members.map(|member| member.and_then(natural).unwrap_or_default());
        Self { input, output, cache_read, cache_write, reasoning }
    }

    /// The sum of two.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            output: self.output.saturating_add(other.output),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write: self.cache_write.saturating_add(other.cache_write),
            reasoning: self.reasoning.saturating_add(other.reasoning),
        }
    }
}

/// The usage that a chunk reports. Most chunks are text, so this must be quick.
fn sample(data: Value<'_>) -> Option<Value<'_>> {
    let chunk = data.get("chunk")?;
    let [kind, usage] = chunk.get_all(["type", "usage"]);
    usage.filter(|_| kind.is_some_and(|kind| kind.is_str("usage")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::testing::event;

    fn message(step: u64, usage: &str) -> (&'static str, String) {
        ("assistant/message", format!(r#"{{"turn":1,"step":{step},"message":{{}},"usage":{usage}}}"#))
    }

    fn chunk(step: u64, usage: &str) -> (&'static str, String) {
        let chunk = format!(r#"{{"type":"usage","usage":{usage}}}"#);
        ("assistant/chunk", format!(r#"{{"turn":1,"step":{step},"chunk":{chunk}}}"#))
    }

    fn folded(seed_length: Option<u64>, events: &[(&str, String)]) -> (u64, u64, u64) {
        let mut usage = Usage::new(seed_length);
        for (seq, (type_name, data)) in (0..).zip(events) {
            usage.take(&event(seq, type_name, data));
        }
        (usage.steps(), usage.total().input, usage.total().output)
    }

    #[test]
    fn a_step_counts_once_and_its_message_over_samples() {
        let figure = r#"{"inputTokens":100,"outputTokens":20,"reasoningTokens":15}"#;
        let events =
            [chunk(1, figure), chunk(2, r#"{"inputTokens":200,"outputTokens":30}"#), message(1, figure)];
        assert_eq!(folded(None, &events), (2, 300, 50));
        // A sample behind the message does not count, nor the samples of an attempt before the last.
        let more = [
            chunk(1, r#"{"inputTokens":7}"#),
            chunk(1, r#"{"inputTokens":9}"#),
            message(2, figure),
            chunk(2, "{}"),
        ];
        assert_eq!(folded(None, &more), (2, 109, 20));
    }

    #[test]
    fn what_was_inherited_is_not_own_work() {
        let figure = r#"{"inputTokens":1,"outputTokens":2}"#;
        let events = [message(1, figure), message(2, figure), message(3, figure)];
        assert_eq!(folded(Some(2), &events), (1, 1, 2));
        assert_eq!(folded(Some(9), &events), (0, 0, 0));
    }

    #[test]
    fn odd_figures_count_as_none_and_never_overflow() {
        let odd = r#"{"inputTokens":-1,"outputTokens":1.5,"cacheReadTokens":"3","cacheWriteTokens":4e0}"#;
        let mut usage = Usage::default();
        usage.take(&event(0, "assistant/message", &message(1, odd).1));
        assert_eq!(usage.total(), TokenUsage { cache_write: 4, ..TokenUsage::default() });
        for data in [
            "null",
            r#"{"usage":{}}"#,
            r#"{"turn":1,"step":"2","usage":{}}"#,
            r#"{"turn":1,"step":2,"usage":3}"#,
        ] {
            usage.take(&event(1, "assistant/message", data));
        }
        assert_eq!(usage.steps(), 1);
        let most = TokenUsage { input: u64::MAX, ..TokenUsage::default() };
        assert_eq!(most.plus(&most).input, u64::MAX);
    }
}
