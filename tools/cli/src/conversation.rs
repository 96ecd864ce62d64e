//! Messages as a person reads them.
//!
//! Walks the message text in place; unknown block types are named, never dropped in silence.

use std::io::{self, Write};

use sessionlog::event::json::Value;

use crate::output::{Style, human};

/// Writes messages to `out`.
pub(crate) struct Writer<'a, W> {
    out: &'a mut W,
    style: Style,
    result_lines_max: usize,
}

impl<'a, W: Write> Writer<'a, W> {
    /// Of each tool result at most `result_lines_max` lines are shown.
    pub(crate) fn new(out: &'a mut W, style: Style, result_lines_max: usize) -> Self {
        Self { out, style, result_lines_max }
    }

    /// A message with a line that says who speaks; `place` says where it stands.
    pub(crate) fn message(&mut self, message: Value<'_>, place: &str) -> io::Result<()> {
        let speaker = self.style.bold(&speaker(message));
        writeln!(self.out, "{speaker} {}", self.style.dim(place))?;
        for block in message.get("content").into_iter().flat_map(|content| content.elements()) {
            self.block(block)?;
        }
        writeln!(self.out)
    }

    fn block(&mut self, block: Value<'_>) -> io::Result<()> {
        let [kind, text, name, arguments, content, is_error] =
            block.get_all(["type", "text", "name", "arguments", "content", "isError"]);
        let kind = text_of(kind);
        match kind.as_str() {
            "text" => self.indented(&text_of(text), usize::MAX),
            "reasoning" => {
                let text = human::printable(&text_of(text)).into_owned();
                text.lines().try_for_each(|line| writeln!(self.out, "  {}", self.style.dim(line)))
            }
            "tool-call" => {
                let (name, arguments) = (text_of(name), text_of(arguments));
                let call = format!("{}({})", human::one_line(&name), human::one_line(&arguments));
                writeln!(self.out, "  {} {call}", self.style.bold("→"))
            }
            "tool-result" => self.tool_result(content, is_error.is_some_and(|flag| flag.is_true())),
            _ => writeln!(self.out, "  {}", self.style.dim(&format!("[{}]", human::one_line(&kind)))),
        }
    }

    fn tool_result(&mut self, content: Option<Value<'_>>, is_error: bool) -> io::Result<()> {
        if is_error {
            writeln!(self.out, "  {}", self.style.bad("error"))?;
        }
        for part in content.into_iter().flat_map(|content| content.elements()) {
            match part.get("text") {
                Some(text) => self.indented(&text_of(Some(text)), self.result_lines_max)?,
                None => writeln!(self.out, "  [{}]", human::one_line(&text_of(part.get("type"))))?,
            }
        }
        Ok(())
    }

    fn indented(&mut self, text: &str, lines_max: usize) -> io::Result<()> {
        let text = human::printable(text);
        for line in text.lines().take(lines_max) {
            writeln!(self.out, "  {line}")?;
        }
        let hidden = text.lines().skip(lines_max).count();
        if hidden > 0 {
            let hidden = human::counted(u64::try_from(hidden).unwrap_or(u64::MAX), "more line");
            writeln!(self.out, "  {}", self.style.dim(&format!("… {hidden}")))?;
        }
        Ok(())
    }
}

/// A string value for people; anything else is empty.
pub(crate) fn text_of(value: Option<Value<'_>>) -> String {
    value.and_then(|value| value.string()).map(|text| text.to_lossy().into_owned()).unwrap_or_default()
}

/// Who speaks: the role, and the source where it says more than the role.
fn speaker(message: Value<'_>) -> String {
    let [role, source] = message.get_all(["role", "source"]);
    let kind = source.map(|source| text_of(source.get("kind"))).unwrap_or_default();
    let who = match (text_of(role).as_str(), kind.as_str()) {
        ("user", "user" | "") => "user".to_owned(),
        ("user", "tool") => "tool".to_owned(),
        ("user", "plugin") => {
            format!("plugin {}", text_of(source.and_then(|source| source.get("plugin"))))
        }
        ("user", other) => other.to_owned(),
        (role, _) => role.to_owned(),
    };
    human::one_line(&who)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Output;

    fn shown(message: &str, result_lines_max: usize) -> String {
        let mut out = Vec::new();
        let style = Output::new(true).style();
        Writer::new(&mut out, style, result_lines_max).message(Value::new(message), "seq 4").unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn blocks_of_every_kind_are_named() {
        let message = r#"{"role":"assistant","content":[{"type":"reasoning","text":"hm"},
            {"type":"text","text":"two\nlines\u001b"},{"type":"tool-call","id":"c","name":"sh","arguments":"{\n}"},
            {"type":"hologram"}],"source":{"kind":"model"}}"#;
        let expected = "assistant seq 4\n  hm\n  two\n  lines␛\n  → sh({ })\n  [hologram]\n\n";
        assert_eq!(shown(message, usize::MAX), expected);
    }

    #[test]
    fn long_results_say_what_they_leave_out() {
        let message = r#"{"role":"user","source":{"kind":"tool","callId":"c"},"content":[{"type":"tool-result",
            "toolCallId":"c","isError":true,"content":[{"type":"text","text":"1\n2\n3"},{"type":"image"}]}]}"#;
        let expected = "tool seq 4\n  error\n  1\n  … 2 more lines\n  [image]\n\n";
        assert_eq!(shown(message, 1), expected);
    }

    #[test]
    fn malformed_messages_do_no_harm() {
        for message in ["null", "[]", "{}", r#"{"content":[null,1,{"type":7}]}"#] {
            assert!(shown(message, usize::MAX).ends_with('\n'));
        }
    }
}
