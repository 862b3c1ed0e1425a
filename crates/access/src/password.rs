//! Password checks with bcrypt hashes.
//!
//! A bcrypt hash takes tens of milliseconds of CPU by design. The result is cached under a keyed hash, so that a client
//! that sends a request every second causes only one bcrypt run. New passwords are checked one at a time, with a pause
//! after a wrong one, which limits guessing to a tenth of a CPU. A client has at most one check waiting, so that other
//! clients get their turn.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::alphabet::BCRYPT;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use model::sync::lock;
use ring::hmac;
use ring::rand::SystemRandom;
use subtle::ConstantTimeEq;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Hashes of other programs may have trailing bits that are not zero.
const BASE64: GeneralPurpose = GeneralPurpose::new(&BCRYPT, NO_PAD.with_decode_allow_trailing_bits(true));
/// Maximum number of password bytes that bcrypt reads, including the final NUL.
const MAX_BYTES: usize = 72;
/// Maximum number of clients that wait for a password check.
const MAX_WAITING: usize = 16;
/// Maximum time that a client waits.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of wrong passwords in the cache.
const MAX_WRONG: usize = 64;
/// Ratio of the pause after a wrong password to the duration of its check.
const PAUSE: u32 = 9;
/// Above this cost, a first request waits for seconds and delays other new clients.
const SLOW_COST: u32 = 14;

/// Parsed bcrypt hash of a password.
#[derive(Clone, Debug, PartialEq)]
pub struct PasswordHash {
    cost: u32,
    salt: [u8; 16],
    digest: [u8; 23],
}

impl PasswordHash {
    /// Parses `$2y$10$` (or `2a`, `2b`) followed by 53 characters.
    pub fn parse(text: &str) -> Option<PasswordHash> {
        let mut parts = text.strip_prefix('$')?.split('$');
        let (version, cost, rest, None) = (parts.next()?, parts.next()?, parts.next()?, parts.next()) else {
            return None;
        };
        let cost = cost.parse().ok().filter(|cost| cost_is_valid(*cost) && version_is_known(version))?;
        let (salt, digest) = rest.split_at_checked(22)?;
        Some(PasswordHash { cost, salt: decoded(salt)?, digest: decoded(digest)? })
    }

    /// Returns a warning if the hash delays clients with the right password.
    pub fn slow(&self) -> Option<String> {
        (self.cost > SLOW_COST).then(|| {
            format!(
                "cost {} takes seconds of CPU for the first request of a client; use a cost of 10 to 12",
                self.cost
            )
        })
    }

    fn is_of(&self, password: &[u8]) -> bool {
        let mut key = password.to_vec();
        key.push(0);
        key.truncate(MAX_BYTES);
        let digest = bcrypt::bcrypt(self.cost, self.salt, &key);
        digest[..23].ct_eq(&self.digest).into()
    }
}

fn cost_is_valid(cost: u32) -> bool {
    (4..=31).contains(&cost)
}

fn version_is_known(version: &str) -> bool {
    ["2a", "2b", "2y"].contains(&version)
}

fn decoded<const N: usize>(text: &str) -> Option<[u8; N]> {
    BASE64.decode(text).ok()?.try_into().ok()
}

/// Result of a password check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PasswordCheck {
    Right,
    Wrong,
    /// Too many checks are waiting; the client may retry.
    Busy,
}

/// Password checks for clients, which `C` identifies.
#[derive(Debug)]
pub struct Passwords<C> {
    known: Arc<KnownPasswords>,
    /// Permit for one check at a time, including its pause.
    turn: Arc<Semaphore>,
    waiting: Mutex<HashSet<C>>,
}

#[derive(Debug)]
struct KnownPasswords {
    key: hmac::Key,
    outcomes: Mutex<PasswordOutcomes>,
}

type Tag = [u8; 32];

#[derive(Debug, Default)]
struct PasswordOutcomes {
    /// By user, so that wrong passwords cannot evict right ones.
    right: HashMap<String, Tag>,
    wrong: VecDeque<Tag>,
}

impl<C: Clone + Eq + Hash> Passwords<C> {
    /// Generates a key for the cache. Returns `None` if the system has no random numbers.
    pub fn new() -> Option<Passwords<C>> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok()?;
        let known = Arc::new(KnownPasswords { key, outcomes: Mutex::default() });
        Some(Passwords { known, turn: Arc::new(Semaphore::new(1)), waiting: Mutex::default() })
    }

    /// Checks the password of a user against the hashes in `users`.
    pub async fn check(
        &self,
        users: &BTreeMap<String, PasswordHash>,
        (user, password): (&str, &[u8]),
        client: C,
    ) -> PasswordCheck {
        let tag = self.known.tag(user, users.get(user), password);
        if let Some(known) = self.known.outcome(user, &tag) {
            return known;
        }
        let Some(_place) = self.wait(client) else { return PasswordCheck::Busy };
        let Ok(Ok(turn)) = timeout(PATIENCE, Arc::clone(&self.turn).acquire_owned()).await else {
            return PasswordCheck::Busy;
        };
        // Another request of the same client may have cached the result.
        if let Some(known) = self.known.outcome(user, &tag) {
            return known;
        }
        let is_known = users.contains_key(user);
        // An unknown user costs as much CPU as a known one.
        let hash = users.get(user).or_else(|| users.values().min_by_key(|hash| hash.cost)).cloned();
        let (known, user, password) = (Arc::clone(&self.known), user.to_owned(), password.to_vec());
        // The permit belongs to the helper thread: a client that disconnects early cannot start a second check.
        let check = move || {
            let started = Instant::now();
            let is_right = hash.is_some_and(|hash| hash.is_of(&password)) && is_known;
            known.keep(user, tag, is_right);
            if !is_right {
                let pause = pause_after(started.elapsed());
                Handle::current().spawn(async move {
                    tokio::time::sleep(pause).await;
                    drop(turn);
                });
            }
            is_right
        };
        match tokio::task::spawn_blocking(check).await {
            Ok(true) => PasswordCheck::Right,
            Ok(false) => PasswordCheck::Wrong,
            Err(_) => PasswordCheck::Busy,
        }
    }

    /// Returns a place in the queue; `None` if the client already has one or the queue is full.
    fn wait(&self, client: C) -> Option<WaitingClient<'_, C>> {
        let mut waiting = lock(&self.waiting);
        let has_place = waiting.len() < MAX_WAITING && waiting.insert(client.clone());
        has_place.then(|| WaitingClient { all: &self.waiting, client })
    }
}

/// Returns the time after a wrong password without checks of new passwords. Cached passwords are not delayed.
fn pause_after(check: Duration) -> Duration {
    check.saturating_mul(PAUSE)
}

struct WaitingClient<'a, C: Eq + Hash> {
    all: &'a Mutex<HashSet<C>>,
    client: C,
}

impl<C: Eq + Hash> Drop for WaitingClient<'_, C> {
    fn drop(&mut self) {
        lock(self.all).remove(&self.client);
    }
}

impl KnownPasswords {
    /// Returns the cache key of user, hash and password, so that a new hash of the user invalidates cached results.
    fn tag(&self, user: &str, hash: Option<&PasswordHash>, password: &[u8]) -> Tag {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&(user.len() as u64).to_le_bytes());
        context.update(user.as_bytes());
        if let Some(hash) = hash {
            context.update(&hash.cost.to_le_bytes());
            context.update(&hash.salt);
            context.update(&hash.digest);
        }
        context.update(password);
        let mut tag = [0; 32];
        tag.copy_from_slice(context.sign().as_ref());
        tag
    }

    fn outcome(&self, user: &str, tag: &Tag) -> Option<PasswordCheck> {
        let outcomes = lock(&self.outcomes);
        let is = |known: &Tag| bool::from(known.ct_eq(tag));
        if outcomes.right.get(user).is_some_and(is) {
            return Some(PasswordCheck::Right);
        }
        outcomes.wrong.iter().any(is).then_some(PasswordCheck::Wrong)
    }

    fn keep(&self, user: String, tag: Tag, is_right: bool) {
        let mut outcomes = lock(&self.outcomes);
        if is_right {
            outcomes.right.insert(user, tag);
            return;
        }
        if outcomes.wrong.len() == MAX_WRONG {
            outcomes.wrong.pop_front();
        }
        outcomes.wrong.push_back(tag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of "secret".
    const HASH: &str = "$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";

    #[test]
    fn hashes_of_other_programs_fit() {
        for (hash, password) in [
            (HASH, "secret"),
            ("$2a$06$DCq7YPn5Rq63x1Lad4cll.TV4S6ytwfsfvkgY8jIucDrjc8deX1s.", ""),
            ("$2a$06$m0CrhHm10qJ3lXRY.5zDGO3rS2KdeeWLuGmsfGlMfOxih58VYVfxe", "a"),
            ("$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW", "U*U"),
        ] {
            let hash = PasswordHash::parse(hash).unwrap();
            assert!(hash.is_of(password.as_bytes()), "{password}");
            for wrong in ["Secret", "secre", "secrets", &"a".repeat(100)] {
                assert!(!hash.is_of(wrong.as_bytes()), "{wrong}");
            }
        }
        let cut = HASH.len() - 1;
        for bad in [
            "",
            "doe",
            &HASH[..cut],
            &format!("{HASH}a"),
            &HASH.replace("2y", "5"),
            &HASH.replace("04", "03"),
        ] {
            assert_eq!(PasswordHash::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_guesser_gets_a_tenth_of_a_cpu_whatever_the_cost() {
        for check in [60, 1_000, 60_000].map(Duration::from_millis) {
            assert_eq!(check * 10, check + pause_after(check), "{check:?}");
        }
        let slow = |cost: &str| PasswordHash::parse(&HASH.replace("04", cost)).unwrap().slow();
        assert_eq!(slow("14"), None);
        assert!(slow("15").unwrap().contains("cost 15 takes seconds"));
    }

    fn users() -> BTreeMap<String, PasswordHash> {
        BTreeMap::from([("alice".to_owned(), PasswordHash::parse(HASH).unwrap())])
    }

    fn hashes(passwords: &Passwords<u8>) -> (usize, usize) {
        let outcomes = lock(&passwords.known.outcomes);
        (outcomes.right.len(), outcomes.wrong.len())
    }

    #[tokio::test]
    async fn each_password_is_hashed_once() {
        let (passwords, users) = (Passwords::new().unwrap(), users());
        for _ in 0..3 {
            assert_eq!(passwords.check(&users, ("alice", b"secret"), 1).await, PasswordCheck::Right);
            assert_eq!(passwords.check(&users, ("alice", b"guess"), 1).await, PasswordCheck::Wrong);
            assert_eq!(passwords.check(&users, ("bob", b"secret"), 1).await, PasswordCheck::Wrong);
        }
        assert_eq!(hashes(&passwords), (1, 2));
        // What is known was known by the earlier hash.
        let mut changed = users.clone();
        changed.get_mut("alice").unwrap().digest[0] ^= 1;
        assert_eq!(passwords.check(&changed, ("alice", b"secret"), 1).await, PasswordCheck::Wrong);
        assert_eq!(passwords.check(&BTreeMap::new(), ("alice", b"secret"), 1).await, PasswordCheck::Wrong);
    }

    #[tokio::test]
    async fn guesses_drive_no_right_password_out_and_are_bounded() {
        let (passwords, users) = (Passwords::new().unwrap(), users());
        assert_eq!(passwords.check(&users, ("alice", b"secret"), 1).await, PasswordCheck::Right);
        for guess in 0..=MAX_WRONG {
            passwords.known.keep("alice".into(), [guess as u8; 32], false);
        }
        assert_eq!(hashes(&passwords), (1, MAX_WRONG));
        // While a guess is checked, who is known gets through.
        let _turn = passwords.turn.acquire().await.unwrap();
        assert_eq!(passwords.check(&users, ("alice", b"secret"), 1).await, PasswordCheck::Right);
    }

    #[tokio::test]
    async fn a_client_waits_once_and_all_of_them_are_bounded() {
        let (passwords, users) = (Passwords::new().unwrap(), users());
        let places: Vec<_> =
            (0..MAX_WAITING - 1).map(|client| passwords.wait(client as u8).unwrap()).collect();
        assert_eq!(passwords.check(&users, ("alice", b"guess"), 0).await, PasswordCheck::Busy, "it waits");
        assert_eq!(passwords.check(&users, ("alice", b"guess"), 100).await, PasswordCheck::Wrong);
        let last = passwords.wait(100).unwrap();
        assert_eq!(passwords.check(&users, ("alice", b"other"), 101).await, PasswordCheck::Busy, "no place");
        drop((places, last));
        assert_eq!(passwords.check(&users, ("alice", b"other"), 101).await, PasswordCheck::Wrong);
    }

    #[tokio::test]
    async fn a_client_that_leaves_early_does_not_end_the_turn() {
        let (passwords, users) = (Passwords::new().unwrap(), users());
        let mut check = Box::pin(passwords.check(&users, ("alice", b"guess"), 1));
        let polled =
            std::future::poll_fn(|context| std::task::Poll::Ready(check.as_mut().poll(context))).await;
        assert!(polled.is_pending());
        drop(check);
        assert!(passwords.turn.try_acquire().is_err(), "the check, or its pause, has it");
        let _turn = timeout(PATIENCE, passwords.turn.acquire()).await.expect("and gives it back").unwrap();
        assert_eq!(hashes(&passwords), (0, 1));
    }
}
