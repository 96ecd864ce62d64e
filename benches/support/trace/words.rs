//! Text that looks like the work of coding agents: common words often, rare ones seldom, phrases and paths again and
//! again. All of it can stand in a JSON string as it is.

use super::random::Random;

/// From frequent to rare.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "the", "to", "a", "of", "and", "is", "in", "it", "that", "for", "this", "with", "file", "be", "test",
    "so", "we", "on", "not", "from", "as", "are", "function", "now", "error", "by", "if", "I", "value",
    "when", "all", "an", "should", "line", "has", "check", "run", "or", "which", "code", "can", "but",
    "there", "returns", "at", "need", "call", "was", "after", "one", "no", "will", "type", "result", "first",
    "then", "before", "module", "have", "add", "only", "change", "new", "does", "string", "read", "fix",
    "let", "use", "path", "write", "they", "fails", "each", "look", "while", "session", "where", "name",
    "these", "already", "request", "state", "into", "tests", "case", "here", "them", "instead", "build",
    "field", "cache", "missing", "same", "update", "because", "index", "list", "directory", "config", "found",
    "still", "passes", "default", "wrong", "branch", "also", "other", "message", "empty", "lock", "output",
    "version", "once", "between", "parser", "loop", "queue", "thread", "server", "handler", "timeout",
    "buffer", "commit", "header", "warning", "remove", "rename", "offset", "client", "schema", "record",
    "retry", "stream", "token", "window", "worker", "closure", "borrow", "lifetime", "iterator", "generic",
    "migration", "deadlock", "snapshot", "endpoint", "checksum", "regression", "idempotent", "rollback",
    "throughput", "backpressure", "serializer", "allocator", "invariant", "projection", "compaction",
    "provenance", "truncated", "deterministic",
];

/// Words joined by spaces, about `bytes` long.
pub(crate) fn prose(random: &mut Random, bytes: usize, out: &mut String) {
    let end = out.len() + bytes;
    while out.len() < end {
        out.push_str(word(random));
        out.push(if random.below(14) == 0 { ',' } else { ' ' });
    }
    out.pop();
}

/// A word, as frequent as in a text: the lowest of three draws.
pub(crate) fn word(random: &mut Random) -> &'static str {
    let mut draw = || random.below(WORDS.len());
    WORDS[draw().min(draw()).min(draw())]
}

/// Output of a tool, about `bytes` long: lines of a search, of a test run, or of source text.
pub(crate) fn tool_output(random: &mut Random, bytes: usize, out: &mut String) {
    let end = out.len() + bytes;
    let kind = random.below(3);
    let file = format!("src/{}/{}.rs", word(random), word(random));
    let mut line = random.below(400);
    while out.len() < end {
        line += 1 + random.below(3);
        match kind {
            0 => out.push_str(&format!("{file}:{line}:    let {} = self.", word(random))),
            1 => out.push_str(&format!("test {}::{} ... ok // ", word(random), word(random))),
            _ => out.push_str(&format!("{line:>6}\\t    pub fn {}(&self, ", word(random))),
        }
        let rest = 24 + random.below(24);
        prose(random, rest, out);
        out.push_str("\\n");
    }
}
