//! The places of a server. Every open connection occupies a place, and at the limit a new connection evicts a waiting
//! one.
//!
//! A connection with a request in progress keeps its place. The others are evicted in this order: connections that are
//! closing, connections without a request so far, idle connections, and connections whose client does not read the
//! response. Within a group, the connection that has waited longest is evicted first. Connections from an address with
//! more than its share of places are evicted before all others. While places are free, an address may occupy any number
//! of them, because all clients behind a proxy share one address.
//!
//! The first request of a new connection is usually in flight, so that a new connection keeps its place for [`GRACE`].
//! This protection ends if many connections have sent nothing, because an attacker could otherwise occupy every place.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::http_counters::HttpCounters;
use model::sync::lock;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// Divisor of all places that yields the share of one address.
const ADDRESS_SHARE: usize = 4;
/// Time for which a connection keeps its place without a request: several round trips within a data centre.
pub(super) const GRACE: Duration = Duration::from_millis(200);
/// Divisor of all places that yields the maximum number of connections protected by [`GRACE`]. At least one is
/// protected.
const GRACE_SHARE: usize = 4;

/// Reason for which a connection waits, in the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WaitsFor {
    /// The client, which has received its last response, has not closed the connection yet.
    End,
    /// The client has not sent its first request.
    First,
    /// The client has not sent its next request.
    Next,
    /// The client does not read its response.
    Client,
}

/// The places of one server.
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    stats: Arc<HttpCounters>,
    table: Mutex<PlaceTable>,
    /// Signals that a connection began to wait or was closed.
    freed: Notify,
}

/// Order of eviction of a waiting connection: reason, start of the wait and connection number.
type Rank = (WaitsFor, Instant, u64);

#[derive(Debug, Default)]
struct PlaceTable {
    next: u64,
    open: HashMap<u64, Occupant>,
    waiting: BTreeSet<Rank>,
    addresses: HashMap<ClientAddress, AddressPlaces>,
    /// Addresses that occupy more than their share.
    crowded: BTreeSet<ClientAddress>,
}

#[derive(Debug)]
struct Occupant {
    address: ClientAddress,
    waiting: Option<Rank>,
    leave: Arc<Notify>,
}

#[derive(Debug, Default)]
struct AddressPlaces {
    open: usize,
    waiting: BTreeSet<Rank>,
}

impl Places {
    pub fn new(max: usize, stats: Arc<HttpCounters>) -> Arc<Places> {
        Arc::new(Places { max, stats, table: Mutex::default(), freed: Notify::new() })
    }

    /// Returns a place for a connection from this address. At the limit, evicts a waiting connection, or returns `None`
    /// if every connection has a request in progress or is new.
    pub fn acquire(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionPlace> {
        if lock(&self.table).open.len() >= self.max && !self.free_one() {
            return None;
        }
        let (since, leave) = (Instant::now(), Arc::new(Notify::new()));
        let mut table = lock(&self.table);
        let id = table.next;
        table.next += 1;
        table.insert(id, ClientAddress::from(address), leave.clone(), self.max / ADDRESS_SHARE);
        let mut place = ConnectionPlace { id, waiting: None, leave, places: self.clone() };
        self.stats.set_connections(table.open.len());
        drop(table);
        place.set_waiting(Some((WaitsFor::First, since)));
        Some(place)
    }

    /// Waits until a place is free or a connection can be evicted, and returns the place.
    pub async fn wait_for_place(self: &Arc<Self>, address: IpAddr) -> ConnectionPlace {
        loop {
            match self.acquire(address) {
                Some(place) => return place,
                // No signal is sent when the grace period of a connection ends.
                None => drop(timeout(GRACE, self.freed.notified()).await),
            }
        }
    }

    /// Evicts one connection. Returns false if every connection has a request in progress or is new.
    pub fn free_one(&self) -> bool {
        let mut table = lock(&self.table);
        let kept = (self.max / GRACE_SHARE).max(1);
        let Some((waiting, _, id)) = table.first_to_leave(Instant::now(), kept) else { return false };
        if let Some(occupant) = table.remove(id, self.max / ADDRESS_SHARE) {
            occupant.leave.notify_one();
        }
        if waiting != WaitsFor::End {
            self.stats.count_evicted();
        }
        self.stats.set_connections(table.open.len());
        true
    }
}

impl PlaceTable {
    fn insert(&mut self, id: u64, address: ClientAddress, leave: Arc<Notify>, share: usize) {
        self.open.insert(id, Occupant { address, waiting: None, leave });
        let places = self.addresses.entry(address).or_default();
        places.open += 1;
        if places.open > share {
            self.crowded.insert(address);
        }
    }

    fn remove(&mut self, id: u64, share: usize) -> Option<Occupant> {
        self.set_waiting(id, None);
        let occupant = self.open.remove(&id)?;
        let places = self.addresses.get_mut(&occupant.address)?;
        places.open -= 1;
        if places.open <= share {
            self.crowded.remove(&occupant.address);
        }
        if places.open == 0 {
            self.addresses.remove(&occupant.address);
        }
        Some(occupant)
    }

    /// Records the wait of a connection. Does nothing if the connection was evicted.
    fn set_waiting(&mut self, id: u64, rank: Option<Rank>) {
        let Some(occupant) = self.open.get_mut(&id) else { return };
        let Some(address) = self.addresses.get_mut(&occupant.address) else { return };
        if let Some(former) = std::mem::replace(&mut occupant.waiting, rank) {
            self.waiting.remove(&former);
            address.waiting.remove(&former);
        }
        if let Some(rank) = rank {
            self.waiting.insert(rank);
            address.waiting.insert(rank);
        }
    }

    /// Returns the connection to evict. At most `kept` connections are protected because they are new.
    fn first_to_leave(&self, now: Instant, kept: usize) -> Option<Rank> {
        let from_first = self.waiting.iter().skip_while(|(waiting, ..)| *waiting < WaitsFor::First);
        let silent =
            from_first.take_while(|(waiting, ..)| *waiting == WaitsFor::First).take(kept + 1).count();
        let leaves = |(waiting, since, _): &&Rank| {
            silent > kept || *waiting != WaitsFor::First || now.duration_since(*since) >= GRACE
        };
        let first = |waiting: &BTreeSet<Rank>| waiting.iter().find(leaves).copied();
        let crowded = self.crowded.iter().filter_map(|address| first(&self.addresses.get(address)?.waiting));
        crowded.min().or_else(|| first(&self.waiting))
    }
}

/// The place of one connection, which is released on drop.
#[derive(Debug)]
pub(super) struct ConnectionPlace {
    id: u64,
    waiting: Option<(WaitsFor, Instant)>,
    leave: Arc<Notify>,
    places: Arc<Places>,
}

impl ConnectionPlace {
    /// Records the reason and the start of a wait, or `None` while a request is in progress.
    pub fn set_waiting(&mut self, waiting: Option<(WaitsFor, Instant)>) {
        if self.waiting != waiting {
            self.waiting = waiting;
            let rank = waiting.map(|(waiting, since)| (waiting, since, self.id));
            lock(&self.places.table).set_waiting(self.id, rank);
            if waiting.is_some() {
                self.places.freed.notify_one();
            }
        }
    }

    /// Resolves once the connection is evicted.
    pub fn left(&self) -> impl Future<Output = ()> + use<> {
        let leave = self.leave.clone();
        async move { leave.notified().await }
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut table = lock(&self.places.table);
        table.remove(self.id, self.places.max / ADDRESS_SHARE);
        self.places.stats.set_connections(table.open.len());
        self.places.freed.notify_one();
    }
}

/// A client identified by its address. Of an IPv6 address only the 64-bit prefix counts, because a host has a whole
/// /64 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ClientAddress(IpAddr);

impl From<IpAddr> for ClientAddress {
    fn from(address: IpAddr) -> ClientAddress {
        ClientAddress(match address.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
            v4 => v4,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(max: usize) -> Arc<Places> {
        Places::new(max, Arc::default())
    }

    fn from(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn has_left(place: &ConnectionPlace) -> bool {
        !lock(&place.places.table).open.contains_key(&place.id)
    }

    /// Returns a wait that began this number of seconds ago.
    fn since(waiting: WaitsFor, seconds: u64) -> Option<(WaitsFor, Instant)> {
        Some((waiting, Instant::now() - Duration::from_secs(seconds)))
    }

    #[test]
    fn connections_leave_in_order_and_one_that_works_never() {
        let places = places(5);
        // An address may have one place without exceeding its share. Here all clients share one address, as behind a proxy.
        let mut open: Vec<ConnectionPlace> = (0..5).map(|_| places.acquire(from(1)).unwrap()).collect();
        open[0].set_waiting(since(WaitsFor::Client, 90));
        open[1].set_waiting(since(WaitsFor::Next, 50));
        open[2].set_waiting(since(WaitsFor::Next, 60));
        open[3].set_waiting(since(WaitsFor::First, 1));
        open[4].set_waiting(None);
        for first in [3, 2, 1, 0] {
            let mut newcomer = places.acquire(from(1)).unwrap();
            newcomer.set_waiting(None);
            assert!(has_left(&open[first]) && !has_left(&open[4]), "{first}");
            open.push(newcomer);
        }
        assert!(places.acquire(from(1)).is_none(), "all work");
        assert_eq!((places.stats.evicted(), places.stats.connections()), (4, 5));
    }

    #[test]
    fn an_address_with_more_than_its_share_loses_first() {
        let places = places(8);
        let mut scraper = places.acquire(from(1)).unwrap();
        scraper.set_waiting(since(WaitsFor::Next, 30));
        let mut crowd: Vec<ConnectionPlace> = (0..7).map(|_| places.acquire(from(2)).unwrap()).collect();
        crowd.iter_mut().for_each(|place| place.set_waiting(since(WaitsFor::Client, 1)));
        let mut newcomers = Vec::new();
        for kept in (2..7).rev() {
            let mut newcomer = places.acquire(from(10 + kept)).unwrap();
            newcomer.set_waiting(None);
            newcomers.push(newcomer);
            let open = crowd.iter().filter(|place| !has_left(place)).count();
            assert_eq!((has_left(&scraper), open), (false, kept.into()));
        }
        let _last = places.acquire(from(3)).unwrap();
        assert!(has_left(&scraper), "no address has more than its share any more");
    }

    #[test]
    fn a_new_connection_keeps_its_place_until_its_request_has_come() {
        let places = places(4);
        let mut open: Vec<ConnectionPlace> =
            (0..4).map(|index| places.acquire(from(index)).unwrap()).collect();
        open[0].set_waiting(None);
        open[1].set_waiting(since(WaitsFor::Client, 1));
        open[2].set_waiting(None);
        let mut newcomer = places.acquire(from(5)).unwrap();
        assert!(has_left(&open[1]) && !has_left(&open[3]), "another one leaves");
        newcomer.set_waiting(None);
        assert!(
            places.acquire(from(6)).is_none() && !has_left(&open[3]),
            "where none does, the next one waits"
        );
        open[3].set_waiting(since(WaitsFor::First, 1));
        let _last = places.acquire(from(6)).unwrap();
        assert!(has_left(&open[3]), "for as long as a request takes");
    }

    #[test]
    fn many_connections_without_a_request_keep_no_place() {
        let places = places(8);
        let silent: Vec<ConnectionPlace> = (0..8).map(|index| places.acquire(from(index)).unwrap()).collect();
        let mut newcomers = Vec::new();
        while let Some(mut newcomer) = places.acquire(from(100 + newcomers.len() as u8)) {
            newcomer.set_waiting(None);
            newcomers.push(newcomer);
        }
        let kept: Vec<bool> = silent.iter().map(|place| !has_left(place)).collect();
        assert_eq!(kept, [false, false, false, false, false, false, true, true], "but the newest quarter");
    }

    #[tokio::test]
    async fn a_newcomer_that_waits_gets_the_place_of_one_that_is_no_longer_new() {
        let places = places(1);
        let silent = places.acquire(from(1)).unwrap();
        let _newcomer = timeout(GRACE * 50, places.wait_for_place(from(2))).await.expect("a place");
        assert!(has_left(&silent) && silent.waiting.is_some_and(|(_, since)| since.elapsed() >= GRACE));
    }

    #[test]
    fn a_place_is_free_when_dropped_and_an_evicted_one_only_once() {
        let places = places(1);
        let mut first = places.acquire(from(1)).unwrap();
        first.set_waiting(since(WaitsFor::First, 1));
        let second = places.acquire(from(2)).unwrap();
        assert!(has_left(&first));
        drop(first);
        assert_eq!((lock(&places.table).open.len(), places.stats.connections()), (1, 1));
        drop(second);
        let table = lock(&places.table);
        assert!(table.open.is_empty() && table.waiting.is_empty() && table.addresses.is_empty());
        assert!(table.crowded.is_empty());
    }

    #[test]
    fn addresses_of_one_host_are_one() {
        let of = |text: &str| ClientAddress::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
