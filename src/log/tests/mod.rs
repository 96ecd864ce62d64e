//! What a log keeps, loses and reports; over a storage that can be cut, flipped and made to fail.

mod commit;
mod patches;
mod reading;
mod recovery;
