//! Lossless JSON text: validated once, then walked in place (spec section 3).
//!
//! [`scan`] checks a text in one pass and notes what is legal JSON but not lossless everywhere (negative
//! zero, integers beyond 2^53, repeated keys, numbers without a finite double). [`Value`] then navigates the
//! text without building a tree, so memory never depends on what the text holds. Nothing here recurses: the
//! nesting depth has no limit. Lone surrogates live as WTF-8 in [`JsonString`].

mod compare;
mod open;
mod scan;
mod string;
mod value;

pub use compare::{Digest, Digester, equal, ordered_equal};
pub use scan::{Fault, FaultKind, MEMBERS_MAX, Notes, Scan, ScannedMember, scan, validate};
pub use string::{JsonString, write_string};
pub use value::{Elements, Kind, Member, Members, Value};

#[cfg(test)]
mod tests;
