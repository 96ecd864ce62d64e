//! Runs the binary against a store of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A store in a temporary directory, and room for files beside it.
pub(crate) struct Bench {
    dir: TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// A store that holds the healthy samples and the cut one.
    pub(crate) fn with_samples() -> Self {
        let bench = Self::new();
        let run = bench.run(&["import", &sample("01"), &sample("02"), &sample("03"), &sample("04")]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        bench
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// Writes a file beside the store and gives its path.
    pub(crate) fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sessionlog"));
        command.arg("--store").arg(self.store()).args(args).stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Run {
        Run::of(self.command(args).output().unwrap())
    }

    /// Runs over another store.
    pub(crate) fn run_over(&self, store: &Path, args: &[&str]) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sessionlog"));
        Run::of(command.arg("--store").arg(store).args(args).stdin(Stdio::null()).output().unwrap())
    }

    /// Runs with `input` as a file on stdin.
    pub(crate) fn run_with(&self, args: &[&str], input: &str) -> Run {
        let path = self.file("stdin", input);
        let file = std::fs::File::open(path).unwrap();
        Run::of(self.command(args).stdin(file).output().unwrap())
    }

    /// The JSON documents of a run that must succeed.
    pub(crate) fn json(&self, args: &[&str]) -> Vec<Value> {
        let run = self.run(&[&["--json"], args].concat());
        assert_eq!(run.code, 0, "{args:?}: {}", run.stderr);
        run.documents()
    }
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code().expect("not killed"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    pub(crate) fn documents(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Path of the sample whose name begins with `number`.
pub(crate) fn sample(number: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples");
    let mut names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let found = names.find(|entry| entry.file_name().to_str().unwrap().starts_with(number)).unwrap();
    found.path().to_str().unwrap().to_owned()
}

/// The keys of an object, sorted.
pub(crate) fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// A header line for session `id`.
pub(crate) fn header(id: &str) -> String {
    format!(r#"{{"type":"session","version":0,"id":"{id}","createdAt":1795770000000,"delegationDepth":0}}"#)
}

/// A log-only event without seq and time.
pub(crate) const EVENT: &str = r#"{"type":"feedback/record","data":{"text":"ok"}}"#;
