//! The validating pass: one walk over a text that decides whether it is JSON and notes its peculiarities.

use std::fmt;

use super::open::{Depth, Keys};
use super::value::{Member, Value};

/// Most top-level members of an object whose places a [`Scan`] keeps; an envelope has at most seven.
pub const MEMBERS_MAX: usize = 16;

/// Members that an envelope has at most: room for them is made at once.
const MEMBERS_USUAL: usize = 7;

/// Byte offsets of the first peculiarity of each kind inside one value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Notes {
    /// A number that reads as negative zero.
    pub negative_zero: Option<u32>,
    /// An integer literal beyond +-(2^53 - 1).
    pub unsafe_integer: Option<u32>,
    /// A number too large for a finite double.
    pub non_finite: Option<u32>,
    /// A key that its object already has.
    pub duplicate_key: Option<u32>,
    /// A line feed or carriage return between tokens.
    pub line_break: Option<u32>,
}

/// One member of the outermost object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScannedMember {
    /// The key with its quotes: start and end offset.
    pub key: (u32, u32),
    /// The value: start and end offset, without surrounding white space.
    pub value: (u32, u32),
    /// Peculiarities inside the value.
    pub notes: Notes,
}

/// What [`scan`] found out about a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// Start and end offset of the value, without surrounding white space.
    pub value: (u32, u32),
    /// Members of the outermost object in text order; empty for every other value.
    pub members: Vec<ScannedMember>,
    /// There were more members than [`MEMBERS_MAX`]; the rest was validated but not kept.
    pub more_members: bool,
    /// Peculiarities of the whole text; of an object's own keys, and of everything inside.
    pub notes: Notes,
}

impl Scan {
    /// The last value of each of `keys` among the members of `text`, which this is the scan of.
    #[must_use]
    pub fn last_of<'a, const N: usize>(&self, text: &'a str, keys: [&str; N]) -> [Option<Value<'a>>; N] {
        if self.more_members {
            return Value::new(text).get_all(keys);
        }
        let mut found = [None; N];
        for member in self.members.iter().map(|m| m.of(text)) {
            if let Some(i) = keys.iter().position(|key| member.is(key)) {
                found[i] = Some(member.value);
            }
        }
        found
    }
}

impl ScannedMember {
    /// The member in `text`, which was scanned.
    #[must_use]
    pub fn of<'a>(&self, text: &'a str) -> Member<'a> {
        Member { key: slice(text, self.key), value: Value::exact(slice(text, self.value)) }
    }
}

fn slice(text: &str, (start, end): (u32, u32)) -> &str {
    text.get(start as usize..end as usize).unwrap_or_default()
}

/// Why a text is not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub kind: FaultKind,
    /// Byte offset of the first byte that does not fit.
    pub offset: usize,
}

/// In words, to follow "is not JSON: ".
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            FaultKind::Truncated => write!(f, "it ends inside a value, at byte {}", self.offset),
            FaultKind::Unexpected => write!(f, "byte {} cannot stand where it stands", self.offset),
            FaultKind::Trailing => write!(f, "more text follows its value at byte {}", self.offset),
            FaultKind::TooLong => f.write_str("it is 4 GiB or longer"),
        }
    }
}

/// Kinds of [`Fault`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The text ended inside a value, or holds none.
    Truncated,
    /// A byte that cannot stand where it stands.
    Unexpected,
    /// A whole value is followed by more than white space.
    Trailing,
    /// The text is 4 GiB or longer.
    TooLong,
}

/// Validates `text` as exactly one JSON value with optional white space around it.
///
/// # Errors
///
/// The first [`Fault`], with its byte offset.
pub fn scan(text: &str) -> Result<Scan, Fault> {
    let mut scanner = Scanner::new(text)?;
    scanner.space();
    let start = scanner.at;
    let mut scan = Scan { value: (0, 0), members: Vec::new(), more_members: false, notes: Notes::default() };
    if scanner.peek() == Some(b'{') {
        scanner.outer_object(&mut scan)?;
    } else {
        scanner.value()?;
    }
    scan.value = (offset(start), offset(scanner.at));
    scanner.end()?;
    merge(&mut scan.notes, &scanner.notes);
    Ok(scan)
}

/// Validates like [`scan`] and keeps no members: the offsets of the value, and its peculiarities. Allocates nothing
/// for an ordinary text.
///
/// # Errors
///
/// Those of [`scan`].
pub fn validate(text: &str) -> Result<((u32, u32), Notes), Fault> {
    let mut scanner = Scanner::new(text)?;
    scanner.space();
    let start = scanner.at;
    scanner.value()?;
    let value = (offset(start), offset(scanner.at));
    scanner.end()?;
    Ok((value, scanner.notes))
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: Depth,
    keys: Keys,
    notes: Notes,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Result<Self, Fault> {
        if u32::try_from(text.len()).is_err() {
            return Err(Fault { kind: FaultKind::TooLong, offset: 0 });
        }
        let (depth, keys, notes) = (Depth::default(), Keys::new(), Notes::default());
        Ok(Self { bytes: text.as_bytes(), at: 0, depth, keys, notes })
    }

    /// Nothing but white space is left.
    fn end(&mut self) -> Result<(), Fault> {
        self.space();
        if self.at < self.bytes.len() { Err(self.fault(FaultKind::Trailing)) } else { Ok(()) }
    }

    /// The outermost object, whose members are kept apart.
    fn outer_object(&mut self, scan: &mut Scan) -> Result<(), Fault> {
        self.open(true);
        self.space();
        if self.peek() == Some(b'}') {
            self.close();
            return Ok(());
        }
        scan.members.reserve(MEMBERS_USUAL);
        loop {
            let key = self.key()?;
            self.notes = Notes { line_break: self.notes.line_break, ..Notes::default() };
            let start = self.at;
            self.value()?;
            let notes = std::mem::take(&mut self.notes);
            merge(&mut scan.notes, &notes);
            let value = (offset(start), offset(self.at));
            if scan.members.len() < MEMBERS_MAX {
                scan.members.push(ScannedMember { key, value, notes });
            } else {
                scan.more_members = true;
            }
            self.space();
            match self.peek() {
                Some(b',') => {
                    self.at += 1;
                    self.space();
                }
                Some(b'}') => {
                    self.close();
                    return Ok(());
                }
                _ => return Err(self.misfit()),
            }
        }
    }

    /// One value of any depth, walked with an explicit stack.
    fn value(&mut self) -> Result<(), Fault> {
        let floor = self.depth.len;
        loop {
            match self.peek() {
                Some(b'{') => {
                    self.open(true);
                    self.space();
                    if self.peek() != Some(b'}') {
                        self.key()?;
                        continue;
                    }
                    self.close();
                }
                Some(b'[') => {
                    self.open(false);
                    self.space();
                    if self.peek() != Some(b']') {
                        continue;
                    }
                    self.close();
                }
                Some(b'"') => drop(self.string()?),
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.literal(b"true")?,
                Some(b'f') => self.literal(b"false")?,
                Some(b'n') => self.literal(b"null")?,
                _ => return Err(self.misfit()),
            }
            if self.after_value(floor)? {
                return Ok(());
            }
        }
    }

    /// Closes what ends here; `true` once the value that began at `floor` is complete.
    fn after_value(&mut self, floor: usize) -> Result<bool, Fault> {
        while self.depth.len > floor {
            self.space();
            let object = self.depth.top_is_object();
            match self.peek() {
                Some(b',') => {
                    self.at += 1;
                    self.space();
                    if object {
                        self.key()?;
                    }
                    return Ok(false);
                }
                Some(b'}') if object => self.close(),
                Some(b']') if !object => self.close(),
                _ => return Err(self.misfit()),
            }
        }
        Ok(true)
    }

    fn open(&mut self, object: bool) {
        self.at += 1;
        self.depth.push(object);
        if object {
            self.keys.open();
        }
    }

    fn close(&mut self) {
        self.at += 1;
        if self.depth.pop() {
            let repeated = self.keys.close(self.bytes);
            note(&mut self.notes.duplicate_key, repeated);
        }
    }

    /// A key, its colon and the white space around it.
    fn key(&mut self) -> Result<(u32, u32), Fault> {
        if self.peek() != Some(b'"') {
            return Err(self.misfit());
        }
        let start = self.at;
        let escaped = self.string()?;
        let key = (offset(start), offset(self.at));
        self.keys.push(key, escaped);
        self.space();
        if self.peek() != Some(b':') {
            return Err(self.misfit());
        }
        self.at += 1;
        self.space();
        Ok(key)
    }

    /// A string; `true` if it holds escapes.
    fn string(&mut self) -> Result<bool, Fault> {
        self.at += 1;
        let mut escaped = false;
        loop {
            self.at = plain_end(self.bytes, self.at);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(escaped);
                }
                Some(b'\\') => self.escape()?,
                _ => return Err(self.misfit()),
            }
            escaped = true;
        }
    }

    fn escape(&mut self) -> Result<(), Fault> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.peek().is_some_and(|b| b.is_ascii_hexdigit()) {
                        return Err(self.misfit());
                    }
                    self.at += 1;
                }
            }
            _ => return Err(self.misfit()),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), Fault> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return Err(self.misfit()),
        }
        let mut integer = true;
        if self.peek() == Some(b'.') {
            integer = false;
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            integer = false;
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        self.note_number(start, integer);
        Ok(())
    }

    fn note_number(&mut self, start: usize, integer: bool) {
        let bytes = &self.bytes[start..self.at];
        if integer && bytes.len() <= 15 {
            if bytes == b"-0" {
                note(&mut self.notes.negative_zero, Some(offset(start)));
            }
            return;
        }
        // The grammar was checked and is a subset of what the parser takes, so this cannot fail.
        let value = std::str::from_utf8(bytes).ok().and_then(|t| t.parse::<f64>().ok()).unwrap_or(f64::NAN);
        if !value.is_finite() {
            note(&mut self.notes.non_finite, Some(offset(start)));
        } else if value == 0.0 && value.is_sign_negative() {
            note(&mut self.notes.negative_zero, Some(offset(start)));
        } else if integer && !is_safe_integer(bytes) {
            note(&mut self.notes.unsafe_integer, Some(offset(start)));
        }
    }

    fn digits(&mut self) -> Result<(), Fault> {
        if !self.peek().is_some_and(|b| b.is_ascii_digit()) {
            return Err(self.misfit());
        }
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), Fault> {
        for &expected in word {
            if self.peek() != Some(expected) {
                return Err(self.misfit());
            }
            self.at += 1;
        }
        Ok(())
    }

    fn space(&mut self) {
        while let Some(b) = self.peek() {
            if b > b' ' {
                return;
            }
            match b {
                b' ' | b'\t' => {}
                b'\n' | b'\r' => note(&mut self.notes.line_break, Some(offset(self.at))),
                _ => return,
            }
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn fault(&self, kind: FaultKind) -> Fault {
        Fault { kind, offset: self.at }
    }

    fn misfit(&self) -> Fault {
        self.fault(if self.at < self.bytes.len() { FaultKind::Unexpected } else { FaultKind::Truncated })
    }
}

/// End of the run of string bytes at `at` that are neither a quote, a backslash nor a control character.
fn plain_end(bytes: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES * 0x80;
    let zero_byte = |x: u64| x.wrapping_sub(ONES) & !x & HIGH;
    // Wide blocks first: the compiler makes vector code of a fold without branches.
    let special = |any: bool, &b: &u8| any | (b < 0x20) | (b == b'"') | (b == b'\\');
    while bytes.get(at..at + 32).is_some_and(|block| !block.iter().fold(false, special)) {
        at += 32;
    }
    while let Some(chunk) = bytes.get(at..at + 8) {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        let x = u64::from_le_bytes(word);
        // The lowest marked byte is exact; borrows can only mark bytes above it.
        let hit = zero_byte(x ^ (ONES * u64::from(b'"')))
            | zero_byte(x ^ (ONES * u64::from(b'\\')))
            | x.wrapping_sub(ONES * 0x20) & !x & HIGH;
        if hit != 0 {
            return at + hit.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while bytes.get(at).is_some_and(|&b| b >= 0x20 && b != b'"' && b != b'\\') {
        at += 1;
    }
    at
}

fn is_safe_integer(bytes: &[u8]) -> bool {
    let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
    const MAX: &[u8] = b"9007199254740991";
    digits.len() < MAX.len() || digits.len() == MAX.len() && digits <= MAX
}

fn note(slot: &mut Option<u32>, found: Option<u32>) {
    if slot.is_none() {
        *slot = found;
    }
}

fn merge(into: &mut Notes, from: &Notes) {
    if *from == Notes::default() {
        return;
    }
    note(&mut into.negative_zero, from.negative_zero);
    note(&mut into.unsafe_integer, from.unsafe_integer);
    note(&mut into.non_finite, from.non_finite);
    note(&mut into.duplicate_key, from.duplicate_key);
    note(&mut into.line_break, from.line_break);
}

/// Offsets fit: the length of the text was checked first.
fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
