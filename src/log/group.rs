//! A group: the batches that one write and one sync make durable, as those who wait for them see it.
//!
//! One condition variable serves the whole group, so that one system call wakes everybody in it and nobody else. It is the
//! standard library's: that of parking_lot wakes one thread and leaves each further one to the thread before.
//!
//! Lock order: the queue before a group.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::thread;

use super::commit::Failure;
use super::completion::Committed;

/// What became of each batch of a group, or why all of them failed.
pub(super) type GroupOutcome = Result<Vec<Committed>, Failure>;

/// What the committer and those who wait for a group's batches share.
#[derive(Debug, Default)]
pub(super) struct Group {
    outcome: OnceLock<GroupOutcome>,
    waiters: Mutex<Waiters>,
    changed: Condvar,
}

/// Who counts on the group.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// Threads that block for it.
    blocked: u32,
    /// One of them is to commit it.
    promoted: bool,
    /// Somebody counts on the background thread.
    demanded: bool,
    /// One for each handle that was polled.
    wakers: Vec<Waker>,
}

impl Group {
    /// The outcome, if it is known by now.
    pub(super) fn outcome(&self) -> Option<&GroupOutcome> {
        self.outcome.get()
    }

    /// Stores the outcome, for whoever asks from now on; the first one counts.
    pub(super) fn complete(&self, outcome: GroupOutcome) {
        let _ = self.outcome.set(outcome);
    }

    /// Wakes those who wait for the outcome.
    pub(super) fn wake(&self) {
        let mut waiters = self.waiters();
        let wakers = std::mem::take(&mut waiters.wakers);
        let blocked = waiters.blocked;
        drop(waiters);
        if blocked > 0 {
            self.changed.notify_all();
        }
        if !wakers.is_empty() {
            let _waking = Waking::begin();
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    pub(super) fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until the outcome is known or this thread has to commit the group; answers whether it has to.
    pub(super) fn block<'g>(&'g self, mut waiters: MutexGuard<'g, Waiters>) -> bool {
        waiters.blocked += 1;
        let promoted = loop {
            if std::mem::take(&mut waiters.promoted) {
                break true;
            }
            if self.outcome.get().is_some() {
                break false;
            }
            waiters = self.changed.wait(waiters).unwrap_or_else(PoisonError::into_inner);
        };
        waiters.blocked -= 1;
        promoted
    }

    /// Has one of those who block commit the group; answers whether there is one.
    pub(super) fn promote(&self) -> bool {
        let mut waiters = self.waiters();
        waiters.promoted = waiters.blocked > 0;
        if waiters.promoted {
            self.changed.notify_one();
        }
        waiters.promoted
    }
}

impl Waiters {
    /// Notes that somebody counts on the background thread.
    pub(super) fn demand(&mut self) {
        self.demanded = true;
    }

    pub(super) fn is_demanded(&self) -> bool {
        self.demanded
    }

    /// Keeps a handle's waker in the place of its former one, which is answered: dropping it may run foreign code, so that
    /// must wait until no lock is held.
    #[must_use]
    pub(super) fn keep_waker(&mut self, place: &mut Option<usize>, waker: &Waker) -> Option<Waker> {
        match place.and_then(|place| self.wakers.get_mut(place)) {
            Some(known) if known.will_wake(waker) => None,
            Some(known) => Some(std::mem::replace(known, waker.clone())),
            None => {
                *place = Some(self.wakers.len());
                self.wakers.push(waker.clone());
                None
            }
        }
    }
}

thread_local! {
    /// This thread is running the wakers of hosts, and may be the one that all commits wait for.
    static WAKING: Cell<bool> = const { Cell::new(false) };
}

/// For as long as wakers run.
struct Waking;

impl Waking {
    fn begin() -> Self {
        WAKING.set(true);
        Self
    }
}

impl Drop for Waking {
    fn drop(&mut self) {
        WAKING.set(false);
    }
}

/// Runs what may wait for commits or for threads of the log: here, or on a thread of its own if this one is running wakers. One
/// that belongs to a task nobody runs any more drops the task, and with it perhaps the last handle of a session or a store.
pub(crate) fn off_the_wakers(work: impl FnOnce() + Send + 'static) {
    if WAKING.get() {
        let _ = thread::Builder::new().name("sessionlog-drop".to_owned()).spawn(work);
    } else {
        work();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct CountWakes(AtomicU32);

    impl Wake for CountWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn each_handle_that_was_polled_is_woken_by_its_latest_waker() {
        let group = Group::default();
        let mut places = [None; 2];
        let wakes = [(); 3].map(|()| Arc::new(CountWakes::default()));
        for (handle, waker) in [(0, 0), (1, 1), (0, 2), (1, 1)] {
            let waker = Waker::from(Arc::clone(&wakes[waker]));
            drop(group.waiters().keep_waker(&mut places[handle], &waker));
        }
        group.wake();
        assert_eq!(wakes.map(|wakes| wakes.0.load(Ordering::SeqCst)), [0, 1, 1]);
    }

    #[test]
    fn nobody_is_promoted_in_a_group_that_nobody_blocks_for() {
        let group = Group::default();
        assert!(!group.promote());
        group.complete(Ok(Vec::new()));
        assert!(!group.block(group.waiters()), "the outcome is known: it neither blocks nor leads");
    }
}
