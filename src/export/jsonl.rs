//! Writes one session as JSONL text, plain or in zstd frames (spec section 14.2).
//!
//! Text leaves in pieces of bounded size: memory is one piece and the largest event.

use std::io::Write;

use super::pack::{Packer, Piece};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, SessionHeader};
use crate::format::compress::{FrameEncoder, LEVEL_DEFAULT};
use crate::import::packed;

/// Text after which a piece (in zstd JSONL, a frame) is written, in bytes. The reference writes a frame per
/// durable batch; larger ones compress better and decode as well.
const PIECE_BYTES: usize = 256 << 10;

/// How JSONL text is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JsonlFormat {
    /// As it is.
    Plain,
    /// In zstd frames with checksums, the first of which holds exactly the header line.
    Zstd,
}

impl JsonlFormat {
    /// Name of a session's file in the reference's layout (spec section 14.1).
    #[must_use]
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Plain => "session.jsonl",
            Self::Zstd => "session.jsonl.zstd",
        }
    }
}

/// Writes the events of one session, in order, behind its header line.
#[derive(Debug)]
pub struct JsonlWriter<W> {
    out: W,
    text: String,
    packer: Option<Packer>,
    encoder: Option<FrameEncoder>,
    frame: Vec<u8>,
}

impl<W: Write> JsonlWriter<W> {
    /// Writes the header line. With `packed`, runs of chunk events become rows (spec section 13), losing
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] from `out`.
    pub fn new(out: W, format: JsonlFormat, packed: bool, header: &SessionHeader) -> Result<Self> {
        let encoder = match format {
            JsonlFormat::Plain => None,
            JsonlFormat::Zstd => Some(FrameEncoder::new(LEVEL_DEFAULT, true)?),
        };
        let mut writer = Self {
            out,
            text: String::new(),
            packer: packed.then(Packer::default),
            encoder,
            frame: Vec::new(),
        };
        header.write_json(&mut writer.text);
        writer.text.push('\n');
        writer.write_piece()?;
        Ok(writer)
    }

    /// Writes the next event.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for a type that JSONL reserves for packed rows (spec section 13),
    /// [`ErrorKind::Io`] from the output. After an error the output is incomplete.
    pub fn event(&mut self, event: &Event<'_>) -> Result<()> {
        if packed::is_row_type(&event.type_name) {
            let message = format!("export: jsonl cannot hold an event named {}", event.type_name);
            return Err(Error::new(ErrorKind::Unsupported, message).with_seq(event.seq));
        }
        let mut write = |piece: Piece<'_>| {
            piece.write_line(&mut self.text);
            Ok(())
        };
        match &mut self.packer {
            Some(packer) => packer.push(event, &mut write)?,
            None => write(Piece::Event(event))?,
        }
        if self.text.len() < PIECE_BYTES { Ok(()) } else { self.write_piece() }
    }

    /// Writes what was held back and gives the output back, flushed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] from the output.
    pub fn finish(mut self) -> Result<W> {
        if let Some(packer) = &mut self.packer {
            packer.flush(&mut |piece| {
                piece.write_line(&mut self.text);
                Ok(())
            })?;
        }
        self.write_piece()?;
        self.out.flush().map_err(write_error)?;
        Ok(self.out)
    }

    fn write_piece(&mut self) -> Result<()> {
        if self.text.is_empty() {
            return Ok(());
        }
        let bytes = match &mut self.encoder {
            None => self.text.as_bytes(),
            Some(encoder) => {
                encoder.encode(self.text.as_bytes(), &mut self.frame)?;
                &self.frame
            }
        };
        self.out.write_all(bytes).map_err(write_error)?;
        self.text.clear();
        Ok(())
    }
}

fn write_error(source: std::io::Error) -> Error {
    Error::io("export: write", source)
}

#[cfg(test)]
mod tests;
