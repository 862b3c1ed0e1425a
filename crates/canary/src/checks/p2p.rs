//! `p2p` copies data from this GPU to another and verifies it there. Any wrong word is a wrong result. The rate is not
//! compared with anything, because it depends on the pair of GPUs.

use super::*;
use crate::code;
use crate::session::cuda::{CudaContext, DeviceId};
use crate::session::{check_args, device};

pub static CHECK: Check = Check::new(CanaryCheck::P2p, CanaryStep::P2p, &["fill", "check"], measure, judge);

/// Maximum bytes of one copy.
const BYTES: u64 = 64 << 20;
const COPIES: usize = 5;

/// The GPU at the other end of the copies.
struct Peer {
    id: DeviceId,
    context: CudaContext,
    check: CudaFunction,
    data: DeviceSlice<u64>,
    bad: DeviceSlice<BadWords>,
}

/// Measures the copies. Returns `None` if no other GPU was requested.
fn measure(s: &mut Session<'_>) -> Try<Option<CheckResult>> {
    let Some(uuid) = s.request.peer.clone() else { return Ok(None) };
    let words = (BYTES.min(s.request.memory_bytes / 2).min(s.arena.left()) / 512 * 64) as usize;
    let data = s.arena.data::<u64>(words)?;
    let peer = Peer::open(s, &uuid, words)?;
    let access = s.cuda.can_access(s.id, peer.id)?;
    s.cuda.make_current(s.context)?;
    if access {
        match s.cuda.enable_peer(peer.context) {
            // Peer access was already enabled.
            Ok(()) | Err(CudaError { code: 704, .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let seed = stats::seed(s.request.seed, 11);
    let (a, b) = (seed, stats::seed(seed, 12) | 1);
    s.fill(data, Pattern::Arithmetic, (a, b))?;
    let mut tally = Mismatches::default();
    copy(s, &peer, data)?;
    let seconds = (0..COPIES).map(|_| copy(s, &peer, data)).collect::<Try<_>>()?;
    tally.add(words as u64, peer.check(s, (a, b))?);
    while tally.wants_more() {
        copy(s, &peer, data)?;
        let wrong = peer.check(s, (a, b))?;
        tally.add(0, wrong);
    }
    // Releases everything that was allocated on the other GPU.
    s.cuda.release(peer.id)?;
    s.cuda.make_current(s.context)?;
    let found = CheckFigures::Peer { peer: uuid, bytes: data.bytes(), seconds, access };
    Ok(Some((found, tally)))
}

fn copy(s: &mut Session<'_>, peer: &Peer, data: DeviceSlice<u64>) -> Try<f64> {
    let (to, from) = ((peer.data, peer.context), (data, s.context));
    s.timed(|cuda, queue| cuda.queue_peer(to, from, queue))
}

impl Peer {
    /// Opens the peer and makes its context current.
    fn open(s: &Session<'_>, uuid: &str, words: usize) -> Try<Peer> {
        let cuda = s.cuda;
        let id = device::find(cuda, 1, uuid)?;
        let capability = device::capability(cuda, id)?;
        let (major, minor) = capability;
        let Some(code) = code::choose(capability) else {
            let text = format!("there are no kernels for {uuid} with compute capability {major}.{minor}");
            return Err(Ended::Unable(CanarySkip::NoKernels, text));
        };
        let context = cuda.retain(id)?;
        let module = cuda.load_module(code.image)?;
        let check = cuda.function(&module, "check")?;
        let memory = cuda.alloc(words as u64 * 8 + 4096)?;
        let none = || Ended::Unable(CanarySkip::NoMemory, format!("not enough free memory on {uuid}"));
        let data = DeviceSlice::within(&memory, 0, words).ok_or_else(none)?;
        let bad = DeviceSlice::within(&memory, words as u64 * 8, 1).ok_or_else(none)?;
        Ok(Peer { id, context, check, data, bad })
    }

    /// Checks the copy on the other GPU.
    fn check(&self, s: &Session<'_>, start: (u64, u64)) -> Try<WrongResults> {
        s.poll.go_on()?;
        s.cuda.make_current(self.context)?;
        let wrong = self.check_there(s, start);
        s.cuda.make_current(s.context)?;
        Ok(wrong?)
    }

    fn check_there(&self, s: &Session<'_>, start: (u64, u64)) -> Result<WrongResults, CudaError> {
        let queue = s.cuda.stream()?;
        s.cuda.zero(self.bad)?;
        let args = check_args(self.data, self.bad, Pattern::Arithmetic, start);
        s.cuda.launch(self.check, s.walk_grid(), &queue, &args)?;
        s.cuda.wait(&queue)?;
        let bad = s.cuda.copy_one(self.bad)?;
        s.cuda.destroy_stream(queue)?;
        Ok(WrongResults::of_words(&bad, "peer"))
    }
}

fn judge(_: &RunContext<'_>, measured: &Measurement, _: &Clock) -> Sample {
    let CheckFigures::Peer { peer, bytes, seconds, access } = &measured.found else {
        return CheckFigures::of_another_check();
    };
    let Some((_, speed)) = reads::speed(*bytes, seconds) else { return reads::no_time() };
    let mut sample = Sample::new();
    sample.rate = Some(Rate::BytesPerSecond(speed));
    let way = if *access {
        "directly"
    } else {
        "through the host, because the GPUs cannot access each other's memory"
    };
    sample.say(format!("{} to {peer}, {way}", bytes_per_second(speed)));
    sample
}
