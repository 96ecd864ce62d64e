//! What sealing saves. Each test prints its figures (`--nocapture`) and holds them to a bound.

use super::*;
use crate::format::compress::{FrameEncoder, LEVEL_DEFAULT};
