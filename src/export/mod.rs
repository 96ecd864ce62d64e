//! Writes sessions in formats that the reference opens. What is written reads back as the same events.

mod pack;
