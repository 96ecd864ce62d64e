//! Request headers of a chosen size that are edited a little from request to request.

use super::random::Random;
use super::words::{prose, word};

/// Bytes of a paragraph of the system text, and about those of a tool.
const PART_BYTES: usize = 900;

/// A header: a system text in paragraphs, then tools. Two fifths of its bytes are system text.
#[derive(Debug, Clone)]
pub(crate) struct Header {
    paragraphs: Vec<String>,
    tools: Vec<String>,
}

impl Header {
    /// A header of about `bytes`.
    pub(crate) fn new(random: &mut Random, bytes: usize) -> Self {
        let parts = (bytes / PART_BYTES).max(2);
        let paragraphs = (0..(parts * 2 / 5).max(1)).map(|_| paragraph(random)).collect();
        let tools = (0..parts - parts * 2 / 5).map(|n| tool(random, n)).collect();
        Self { paragraphs, tools }
    }

    /// A small edit: one sentence of the system text is another one.
    pub(crate) fn edit(&mut self, random: &mut Random) {
        let edited = random.below(self.paragraphs.len());
        let paragraph = &mut self.paragraphs[edited];
        let keep = paragraph.find(". ").map_or(0, |at| at + 2);
        let mut sentence = String::new();
        prose(random, 60, &mut sentence);
        paragraph.replace_range(..keep, &format!("{sentence}. "));
    }

    /// The header as JSON.
    pub(crate) fn write_json(&self, out: &mut String) {
        out.push_str(r#"{"config":{"provider":"acme","model":"acme-large","maxTokens":32768},"system":""#);
        out.push_str(&self.paragraphs.join("\\n\\n"));
        out.push_str(r#"","tools":["#);
        out.push_str(&self.tools.join(","));
        out.push_str("]}");
    }

    /// The header as JSON.
    pub(crate) fn to_json(&self) -> String {
        let mut out = String::new();
        self.write_json(&mut out);
        out
    }
}

fn paragraph(random: &mut Random) -> String {
    let mut text = String::from("Be brief. ");
    prose(random, PART_BYTES, &mut text);
    text
}

fn tool(random: &mut Random, n: usize) -> String {
    let mut text = format!(r#"{{"name":"{}_{n}","description":""#, word(random));
    prose(random, PART_BYTES / 2, &mut text);
    text.push_str(r#"","parameters":{"type":"object","properties":{"#);
    for property in 0..3 {
        let comma = if property > 0 { "," } else { "" };
        text.push_str(&format!(r#"{comma}"{}_{property}":{{"type":"string","description":""#, word(random)));
        prose(random, 50, &mut text);
        text.push_str(r#""}"#);
    }
    text.push_str(r#"},"additionalProperties":false}}"#);
    text
}
