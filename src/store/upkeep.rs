//! Upkeep that no caller asks for: a thread that runs it when a segment has ended, or a session in use has run far ahead of its
//! checkpoints.
//!
//! Owns when the upkeep runs by itself; what it does is [`Store::maintain`]'s. The thread is started when it is first needed
//! and then waits for the next time. It never holds up a commit, and it keeps no store open: whoever closes the store, or lets
//! its last handle go, ends the work between two events and waits for the thread, so that the store can be opened again at
//! once. A failure is kept for whoever asks, costs space and time only, and is tried again the next time.

use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

use super::cancel::Cancel;
use super::inner::{Access, Inner};
use super::store::Store;
use crate::ids::SessionKey;
use crate::log::off_the_wakers;
use crate::{Error, ErrorKind, Result, observe};

/// What a store and its sessions hold of the shared part.
#[derive(Clone)]
pub(super) struct Handle(Option<Held>);

/// Absent from a handle only while that is dropped.
#[derive(Clone)]
struct Held {
    /// The thread has none. It goes first, so that the thread lets go of the shared part before this handle does.
    _keeper: Option<Arc<Keeper>>,
    inner: Arc<Inner>,
}

impl Handle {
    /// The first handle of a store that was just opened.
    pub(super) fn new(inner: Inner) -> Self {
        let inner = Arc::new(inner);
        let keeper = inner.upkeep.as_ref().map(|upkeep| Arc::new(Keeper(Arc::clone(upkeep))));
        Self(Some(Held { _keeper: keeper, inner }))
    }

    /// The thread's own.
    fn of_thread(inner: Arc<Inner>) -> Self {
        Self(Some(Held { _keeper: None, inner }))
    }

    fn inner(&self) -> &Arc<Inner> {
        match &self.0 {
            Some(held) => &held.inner,
            None => unreachable!("a handle in use"),
        }
    }

    /// Has the upkeep run when segments end, if the store is to seal by itself; and now if some ended before it was opened.
    pub(super) fn seal_as_segments_end(&self) {
        if let (Some(upkeep), Access::Write(log)) = (&self.upkeep, &self.log) {
            let (upkeep, store) = (Arc::clone(upkeep), self.downgrade());
            log.on_segment_end(Box::new(move || upkeep.call(&store)));
            if log.metrics().unsealed_segments > 0 {
                self.call_upkeep();
            }
        }
    }

    /// A session in use has run far ahead of its checkpoints: its next one is written by the upkeep.
    pub(super) fn call_for_checkpoint(&self, key: SessionKey) {
        self.checkpoints.call_for(key);
        self.call_upkeep();
    }

    fn call_upkeep(&self) {
        if let Some(upkeep) = &self.upkeep {
            upkeep.call(&self.downgrade());
        }
    }

    pub(super) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(self.inner())
    }
}

impl Deref for Handle {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        self.inner()
    }
}

impl Drop for Handle {
    /// The last one closes the store, and waits for its threads.
    fn drop(&mut self) {
        let held = self.0.take();
        off_the_wakers(move || drop(held));
    }
}

/// Lives as long as any handle of a user.
struct Keeper(Arc<Upkeep>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The thread's orders, and how it fared.
#[derive(Default)]
pub(super) struct Upkeep {
    orders: Mutex<Orders>,
    /// Tells the thread of new orders.
    given: Condvar,
    stop: Cancel,
    failure: Mutex<Option<Error>>,
}

#[derive(Default)]
struct Orders {
    is_due: bool,
    thread: Option<JoinHandle<()>>,
}

impl Upkeep {
    /// There is something to do: wakes the thread, or starts it.
    pub(super) fn call(self: &Arc<Self>, store: &Weak<Inner>) {
        let mut orders = self.orders.lock();
        if self.stop.check().is_err() {
            return;
        }
        orders.is_due = true;
        self.given.notify_one();
        // One that panicked is replaced.
        if orders.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let (upkeep, store) = (Arc::clone(self), Weak::clone(store));
        let spawned =
            thread::Builder::new().name("sessionlog-upkeep".to_owned()).spawn(move || upkeep.run(&store));
        match spawned {
            Ok(thread) => orders.thread = Some(thread),
            Err(source) => self.keep_failure(Error::io("run upkeep: start the thread", source)),
        }
    }

    /// Ends the work that is under way, waits for the thread, and starts no other one.
    pub(super) fn stop(&self) {
        self.stop.cancel("run upkeep: the store was closed");
        let mut orders = self.orders.lock();
        self.given.notify_one();
        let thread = orders.thread.take();
        // Whoever commits may be about to call the thread, which may wait for that commit.
        drop(orders);
        if let Some(thread) = thread {
            // Its panic, if any, was reported by the panic hook.
            let _ = thread.join();
        }
    }

    fn run(&self, store: &Weak<Inner>) {
        let _unwinding = TellOnUnwind(self);
        while self.wait() {
            let Some(inner) = store.upgrade() else { return };
            let inner = Handle::of_thread(inner);
            let store = Store { inner, cancel: Some(self.stop.clone()) };
            match store.run_upkeep() {
                Err(error) if error.kind() != ErrorKind::Cancelled => self.keep_failure(error),
                _ => {}
            }
        }
    }

    /// Waits until there is something to do; `false` if nothing is to be done any more.
    fn wait(&self) -> bool {
        let mut orders = self.orders.lock();
        while !orders.is_due && self.stop.check().is_ok() {
            self.given.wait(&mut orders);
        }
        orders.is_due = false;
        self.stop.check().is_ok()
    }

    /// The first failure says most.
    fn keep_failure(&self, error: Error) {
        observe::upkeep_failed(&error);
        self.failure.lock().get_or_insert(error);
    }

    /// Why it failed, until somebody takes note.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().as_ref().map(Error::to_string)
    }

    /// Hands the failure over.
    pub(super) fn take_failure(&self) -> Result<()> {
        self.failure.lock().take().map_or(Ok(()), Err)
    }
}

/// A panic of the thread is a failure to be told.
struct TellOnUnwind<'u>(&'u Upkeep);

impl Drop for TellOnUnwind<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.keep_failure(Error::new(
                ErrorKind::Invalid,
                "run upkeep: its thread panicked, as stderr says",
            ));
        }
    }
}
