//! Writes JSON by hand, so that text out of a log passes through byte for byte.
//!
//! Event data, headers and messages are JSON already: they go in as [`Raw`], never parsed and spelled anew.

use sessionlog::Seq;
use sessionlog::event::json::{JsonString, write_string};

/// A value that knows its JSON text.
pub(crate) trait Json {
    fn write(&self, out: &mut String);
}

/// JSON text that is copied as it stands.
pub(crate) struct Raw<'a>(pub(crate) &'a str);

/// An object under construction; [`Object::end`] gives its text.
pub(crate) struct Object {
    out: String,
}

impl Object {
    pub(crate) fn new() -> Self {
        Self { out: String::from("{") }
    }

    pub(crate) fn field(&mut self, key: &str, value: impl Json) -> &mut Self {
        self.separate();
        key.write(&mut self.out);
        self.out.push(':');
        value.write(&mut self.out);
        self
    }

    /// A field that is JSON text already, its key literal too.
    pub(crate) fn member(&mut self, key: &str, value: &str) -> &mut Self {
        self.separate();
        self.out.push_str(key);
        self.out.push(':');
        self.out.push_str(value);
        self
    }

    fn separate(&mut self) {
        if self.out.len() > 1 {
            self.out.push(',');
        }
    }

    /// A field that is left out when there is no value.
    pub(crate) fn optional(&mut self, key: &str, value: Option<impl Json>) -> &mut Self {
        match value {
            Some(value) => self.field(key, value),
            None => self,
        }
    }

    pub(crate) fn end(&mut self) -> String {
        self.out.push('}');
        std::mem::take(&mut self.out)
    }
}

/// The array of `items`.
pub(crate) fn array<T: Json>(items: impl IntoIterator<Item = T>) -> String {
    let mut out = String::from("[");
    for item in items {
        if out.len() > 1 {
            out.push(',');
        }
        item.write(&mut out);
    }
    out.push(']');
    out
}

impl Json for str {
    fn write(&self, out: &mut String) {
        write_string(out, &JsonString::from(self));
    }
}

impl Json for String {
    fn write(&self, out: &mut String) {
        self.as_str().write(out);
    }
}

/// Lone surrogates come out as escapes.
impl Json for JsonString<'_> {
    fn write(&self, out: &mut String) {
        write_string(out, self);
    }
}

impl Json for Raw<'_> {
    fn write(&self, out: &mut String) {
        out.push_str(self.0);
    }
}

impl Json for Seq {
    fn write(&self, out: &mut String) {
        self.get().write(out);
    }
}

impl<T: Json + ?Sized> Json for &T {
    fn write(&self, out: &mut String) {
        (**self).write(out);
    }
}

impl<T: Json> Json for Option<T> {
    fn write(&self, out: &mut String) {
        match self {
            Some(value) => value.write(out),
            None => out.push_str("null"),
        }
    }
}

impl<T: Json> Json for [T] {
    fn write(&self, out: &mut String) {
        out.push_str(&array(self));
    }
}

/// Seconds with millisecond precision.
impl Json for std::time::Duration {
    fn write(&self, out: &mut String) {
        out.push_str(&format!("{:.3}", self.as_secs_f64()));
    }
}

macro_rules! plain {
    ($($type:ty),+) => {$(
        impl Json for $type {
            fn write(&self, out: &mut String) {
                out.push_str(&self.to_string());
            }
        }
    )+};
}

plain!(bool, u32, u64, i64, usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_nest_and_raw_text_stays_raw() {
        let inner = Object::new().field("n", 1_u64).end();
        let text = Object::new()
            .field("a\"b", "tab\t\u{1}é")
            .field("raw", Raw("{\"x\":1E3,\"s\":\"\\ud83c\"}"))
            .field("none", None::<u64>)
            .optional("absent", None::<u64>)
            .field("list", [Seq::new(4), Seq::new(9)].as_slice())
            .field("inner", Raw(&inner))
            .end();
        assert_eq!(
            text,
            "{\"a\\\"b\":\"tab\\t\\u0001é\",\"raw\":{\"x\":1E3,\"s\":\"\\ud83c\"},\"none\":null,\
             \"list\":[4,9],\"inner\":{\"n\":1}}"
        );
        assert_eq!(Object::new().end(), "{}");
        assert_eq!(array([true, false]), "[true,false]");
    }
}
