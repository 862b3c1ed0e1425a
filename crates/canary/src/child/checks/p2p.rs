//! `p2p`: copies from this GPU to another, their data verified over there.

use super::Finding;
use crate::abi::{BadWords, Pattern};
use crate::child::cuda::{Context, Cuda, DeviceId, Function, Memory, Slice};
use crate::child::device;
use crate::child::errors::{CudaError, Ended, Try};
use crate::child::figures;
use crate::child::session::{Kernels, Session, check_args};
use crate::child::tally::{Tally, Wrong};
use crate::code;
use crate::report::Found;
use model::catalog::CanarySkip;

/// Bytes of one copy at most.
const BYTES: u64 = 64 << 20;
/// Copies.
const COPIES: usize = 5;

/// The other GPU.
struct Peer {
    id: DeviceId,
    context: Context,
    check: Function,
    data: Slice<u64>,
    bad: Slice<BadWords>,
}

/// Copies. `None` if no other GPU was ordered.
pub fn p2p(s: &mut Session<'_>) -> Try<Option<Finding>> {
    let Some(uuid) = s.order.peer.clone() else { return Ok(None) };
    let words = (BYTES.min(s.order.memory_bytes / 2).min(s.arena.left()) / 512 * 64) as usize;
    let data = s.arena.data::<u64>(words)?;
    let peer = Peer::open(s, &uuid, words)?;
    let access = s.cuda.can_access(s.id, peer.id)?;
    s.cuda.make_current(s.context)?;
    if access {
        match s.cuda.enable_peer(peer.context) {
            // It was before.
            Ok(()) | Err(CudaError { code: 704, .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let seed = figures::seed(s.order.seed, 11);
    let (a, b) = (seed, figures::seed(seed, 12) | 1);
    s.fill(data, Pattern::Arithmetic, a, b)?;
    let mut tally = Tally::default();
    let mut seconds = Vec::new();
    copy(s, &peer, data)?;
    for _ in 0..COPIES {
        seconds.push(copy(s, &peer, data)?);
    }
    tally.add(words as u64, peer.check(s, (a, b))?);
    while tally.wants_more() {
        copy(s, &peer, data)?;
        let wrong = peer.check(s, (a, b))?;
        tally.add(0, wrong);
    }
    // Gives back all that the other GPU holds for us.
    s.cuda.release(peer.id)?;
    s.cuda.make_current(s.context)?;
    let found = Found::Peer { peer: uuid, bytes: data.bytes(), seconds, access };
    Ok(Some(Finding { found, mismatches: tally.told() }))
}

fn copy(s: &mut Session<'_>, peer: &Peer, data: Slice<u64>) -> Try<f64> {
    let (to, from) = ((peer.data, peer.context), (data, s.context));
    s.timed(|cuda, queue| cuda.queue_peer(to, from, queue))
}

impl Peer {
    /// Makes its context current.
    fn open(s: &Session<'_>, uuid: &str, words: usize) -> Try<Peer> {
        let cuda: &Cuda = s.cuda;
        let id = device::find(cuda, 1, uuid)?;
        let capability = device::capability(cuda, id)?;
        let Some(code) = code::choose(capability) else {
            let text = format!("no kernels were made for {uuid}, of compute capability {capability:?}");
            return Err(Ended::Unable(CanarySkip::NoKernels, text));
        };
        let context = cuda.retain(id)?;
        let module = cuda.load_module(code.image)?;
        let check = Kernels::of(cuda, &module)?.check;
        let memory: Memory = cuda.alloc(words as u64 * 8 + 4096)?;
        let none = || Ended::Unable(CanarySkip::NoMemory, format!("no memory on {uuid}"));
        let data = Slice::of(&memory, 0, words).ok_or_else(none)?;
        let bad = Slice::of(&memory, words as u64 * 8, 1).ok_or_else(none)?;
        Ok(Peer { id, context, check, data, bad })
    }

    /// Checks the copy on the other GPU.
    fn check(&self, s: &Session<'_>, start: (u64, u64)) -> Try<Wrong> {
        s.poll.go_on()?;
        s.cuda.make_current(self.context)?;
        let wrong = self.check_there(s, start);
        s.cuda.make_current(s.context)?;
        Ok(wrong?)
    }

    fn check_there(&self, s: &Session<'_>, start: (u64, u64)) -> Result<Wrong, CudaError> {
        let queue = s.cuda.stream()?;
        s.cuda.zero(self.bad)?;
        let args = check_args(self.data, self.bad, Pattern::Arithmetic, start);
        s.cuda.launch(self.check, s.walk_grid(), &queue, &args)?;
        s.cuda.wait(&queue)?;
        let told = s.cuda.copy_out(self.bad)?;
        s.cuda.destroy_stream(queue)?;
        Ok(told.first().map(|bad| Wrong::of_words(bad, "peer")).unwrap_or_default())
    }
}
