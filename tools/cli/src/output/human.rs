//! Numbers, times and foreign text as people read them.

use std::borrow::Cow;
use std::time::Duration;

/// `812 B`, `3.4 KiB`, `1.2 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut scaled = precise(count) / 1024.0;
    let mut unit = 0;
    while scaled >= 1023.95 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    format!("{scaled:.1} {}", UNITS[unit])
}

/// `12,345,678`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count with its noun: `1 event`, `2,000 events`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// `850 µs`, `12.3 ms`, `4.56 s`, `2 min 5 s`, `3 h 20 min`.
pub(crate) fn duration(span: Duration) -> String {
    let seconds = span.as_secs();
    match span.as_micros() {
        micros @ 0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{:.1} ms", span.as_secs_f64() * 1e3),
        1_000_000..60_000_000 => format!("{:.2} s", span.as_secs_f64()),
        60_000_000..3_600_000_000 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Share of a whole: `12.5 %`; of nothing, `-`.
pub(crate) fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.1} %", 100.0 * precise(part) / precise(whole)) }
}

/// How many of one for each of the other: `31.2`; for none, `-`.
pub(crate) fn ratio(of: u64, each: u64) -> String {
    if each == 0 { "-".into() } else { format!("{:.1}", precise(of) / precise(each)) }
}

/// How many per second.
pub(crate) fn rate(events: u64, span: Duration) -> u64 {
    let micros = span.as_micros().max(1);
    u64::try_from(u128::from(events) * 1_000_000 / micros).unwrap_or(u64::MAX)
}

/// Milliseconds since the Unix epoch as `2026-11-30 19:43:10` (UTC).
pub(crate) fn time(unix_ms: i64) -> String {
    let seconds = unix_ms.div_euclid(1000);
    let (year, month, day) = civil(seconds.div_euclid(86_400));
    let of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// A path as a shell takes it.
pub(crate) fn shell_word(path: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%".contains(c);
    if !path.is_empty() && path.chars().all(plain) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(format!("'{}'", path.replace('\'', "'\\''")))
}

/// Text out of a log, safe for a terminal: control characters but line feeds and tabs are shown, not obeyed.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let hostile = |c: char| c.is_control() && c != '\n' && c != '\t' || is_bidi_control(c);
    if !text.contains(hostile) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|c| if hostile(c) { picture(c) } else { c }).collect())
}

/// The same on one line: line feeds and tabs become spaces, runs of space one.
pub(crate) fn one_line(text: &str) -> String {
    let mut out = String::new();
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(&printable(word));
    }
    out
}

/// Columns that `text` takes on a terminal.
pub(crate) fn width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

/// `text` cut to `columns`, with an ellipsis where something is missing.
pub(crate) fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let mut taken = 0;
    let end = text
        .char_indices()
        .find(|&(_, c)| {
            taken += char_width(c);
            taken >= columns
        })
        .map_or(text.len(), |(at, _)| at);
    Cow::Owned(format!("{}…", &text[..end]))
}

/// Columns of one character: wide in East Asian scripts and emoji, none for marks that combine.
fn char_width(c: char) -> usize {
    match u32::from(c) {
        0..0x20 | 0x7F..0xA0 => 0,
        0x300..0x370 | 0x483..0x48A | 0x591..0x5BE | 0x64B..0x660 | 0x1AB0..0x1B00 | 0x1DC0..0x1E00 => 0,
        0x200B..0x2010 | 0x2028..0x202F | 0x2060..0x2070 | 0x20D0..0x2100 => 0,
        0xFE00..0xFE10 | 0xFE20..0xFE30 | 0xFEFF | 0xE0000..0xE0200 => 0,
        0x1100..0x1160 | 0x2E80..0x303F | 0x3041..0xA4D0 | 0xAC00..0xD7A4 | 0xF900..0xFB00 => 2,
        0xFE30..0xFE70 | 0xFF00..0xFF61 | 0xFFE0..0xFFE7 | 0x1F300..0x1F650 | 0x1F680..0x1F700 => 2,
        0x1F900..0x1FB00 | 0x20000..0x3FFFE => 2,
        _ => 1,
    }
}

/// Characters that reorder the text around them on a terminal.
fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// What stands for a character that must not be obeyed.
fn picture(c: char) -> char {
    match u32::from(c) {
        low @ 0..0x20 => char::from_u32(0x2400 + low).unwrap_or('\u{FFFD}'),
        0x7F => '\u{2421}',
        _ => '\u{FFFD}',
    }
}

/// Year, month and day of a day number since 1970-01-01, in the proleptic Gregorian calendar, by counting
/// 400-year cycles whose years begin in March.
fn civil(day: i64) -> (i64, i64, i64) {
    let shifted = day + 719_468;
    let cycle = shifted.div_euclid(146_097);
    let in_cycle = shifted.rem_euclid(146_097);
    let year = (in_cycle - in_cycle / 1460 + in_cycle / 36_524 - in_cycle / 146_096) / 365;
    let in_year = in_cycle - (365 * year + year / 4 - year / 100);
    let march_month = (5 * in_year + 2) / 153;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let day_of_month = in_year - (153 * march_month + 2) / 5 + 1;
    (cycle * 400 + year + i64::from(month <= 2), month, day_of_month)
}

#[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
fn precise(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        let sizes = [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_048_575, "1.0 MiB")];
        for (raw, shown) in sizes {
            assert_eq!(bytes(raw), shown);
        }
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!([count(0), count(999), count(1000), count(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([counted(1, "event"), counted(0, "event")], ["1 event", "0 events"]);
        assert_eq!([share(1, 8), share(0, 0)], ["12.5 %", "-"]);
        assert_eq!([ratio(5, 2), ratio(5, 0)], ["2.5", "-"]);
    }

    #[test]
    fn a_path_can_be_pasted_into_a_shell() {
        let words = ["/a/b-c.jsonl", "", "my log", "it's", "höre"].map(shell_word);
        assert_eq!(words, ["/a/b-c.jsonl", "''", "'my log'", "'it'\\''s'", "höre"]);
    }

    #[test]
    fn durations_pick_their_unit() {
        let shown =
            [850, 12_300, 4_560_000, 125_000_000, 12_000_000_000].map(Duration::from_micros).map(duration);
        assert_eq!(shown, ["850 µs", "12.3 ms", "4.56 s", "2 min 5 s", "3 h 20 min"]);
        assert_eq!(rate(10, Duration::from_millis(500)), 20);
    }

    #[test]
    fn times_are_utc_and_total() {
        assert_eq!(time(0), "1970-01-01 00:00:00");
        assert_eq!(time(-1), "1969-12-31 23:59:59");
        assert_eq!(time(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(time(1_795_770_000_000), "2026-11-27 09:00:00");
        assert!(time(i64::MIN).starts_with('-') && !time(i64::MAX).is_empty());
    }

    #[test]
    fn foreign_text_cannot_drive_the_terminal() {
        assert_eq!(printable("a\x1b[31mb\u{202E}c\u{7f}"), "a␛[31mb\u{FFFD}c␡");
        assert_eq!(printable("two\n\tlines"), "two\n\tlines");
        assert_eq!(one_line(" two\n\tlines\x07 "), "two lines␇");
    }

    #[test]
    fn width_counts_columns_and_cuts_between_characters() {
        assert_eq!([width("abc"), width("地図"), width("e\u{301}"), width("🗺\u{FE0F}")], [3, 4, 1, 2]);
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("地図アプリ", 5), "地図…");
    }
}
