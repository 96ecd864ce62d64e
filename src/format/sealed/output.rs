//! The sink of a builder behind a buffer.

use super::SealedSink;
use crate::limits::SEALED_WRITE_BUFFER_BYTES;
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct Output<W> {
    sink: W,
    buffer: Vec<u8>,
}

impl<W: SealedSink> Output<W> {
    pub(super) fn new(sink: W) -> Self {
        Self { sink, buffer: Vec::with_capacity(SEALED_WRITE_BUFFER_BYTES) }
    }

    /// Where the next byte will be.
    pub(super) fn offset(&self) -> u64 {
        self.sink.len() + self.buffer.len() as u64
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if self.buffer.len() + bytes.len() > SEALED_WRITE_BUFFER_BYTES {
            self.flush()?;
        }
        if bytes.len() >= SEALED_WRITE_BUFFER_BYTES {
            return self.sink.append(bytes).map_err(write_error);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Hands all bytes to the sink, so that [`written`](Self::written) has them.
    pub(super) fn flush(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            self.sink.append(&self.buffer).map_err(write_error)?;
            self.buffer.clear();
        }
        Ok(())
    }

    pub(super) fn written(&self) -> &W {
        &self.sink
    }

    pub(super) fn finish(mut self) -> Result<W> {
        self.flush()?;
        Ok(self.sink)
    }
}

fn write_error(source: std::io::Error) -> Error {
    Error::io("write sealed file", source)
}
