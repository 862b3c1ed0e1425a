//! Resources that the exporter itself uses: CPU time, memory and file descriptors from /proc, and the counters of the
//! HTTP server.

use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use procfs::process::{LimitValue, Process};

use super::{Context, Parts, lifetime, put_node_row};
use access::Access;
use host::reader::DeadlineReader;
use host::state::Store;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, CollectorName, HttpStatus, Role};
use model::clock::{Cadence, Mono};
use model::http_counters::HttpCounters;
use model::sample::{Batch, Rows};
use model::sync::lock;

const EVERY: Duration = Duration::from_secs(5);
/// Number of visits between two probes of the state directory.
const PROBE_EVERY: u32 = 12;
/// Deadline of a probe.
const PROBE_WITHIN: Duration = Duration::from_secs(2);

/// Published CPU time of samplers, canaries and topology processes. A child that ends between two readings is briefly
/// missing from both sums, so a published sum never decreases.
type PublishedCpu = [f64; 3];

pub(crate) fn run(context: Context, parts: Parts) {
    let every = EVERY.min(context.config().metrics.publish_interval * 5);
    let mut published = PublishedCpu::default();
    let mut state = StateFolder::new(&context, every);
    context.every(
        |_| every,
        |_| {
            let taken = Mono::now();
            let mut rows = Rows::default();
            if let Err(error) = serve(&mut rows) {
                tracing::warn!(%error, "failed to read /proc of this process; its own metrics are missing");
            }
            children(&parts, &mut rows, &mut published);
            http_server(&parts.http, &mut rows);
            parts.access.iter().for_each(|access| web_config(access, &parts.http, &mut rows));
            state.add_row(&mut rows, taken);
            let answered = !rows.is_empty();
            let batch = Batch::of_node(CollectorName::Process, taken, Some(lifetime(every)), rows);
            context.inbox.batch(Batch { answered, ..batch });
        },
    );
}

/// State of the state directory. The directory is probed because saves are rare and a failure should show earlier.
struct StateFolder {
    store: Store,
    /// Reads with a deadline, because a disk may hang.
    reader: DeadlineReader,
    cadence: Cadence,
    /// Reason why documents are not saved.
    unkept: Option<String>,
}

impl StateFolder {
    fn new(context: &Context, every: Duration) -> StateFolder {
        StateFolder {
            store: context.state.clone(),
            reader: DeadlineReader::new("state-probe", PROBE_WITHIN, Arc::clone(&context.stop)),
            cadence: Cadence::new(every * PROBE_EVERY, Duration::ZERO),
            unkept: None,
        }
    }

    fn add_row(&mut self, rows: &mut Rows, now: Mono) {
        if self.cadence.tick(now) {
            let store = self.store.clone();
            // A second probe would not help while one hangs.
            let found = match self.reader.read(1, move || store.probe()) {
                Ok(found) => found.map_err(|error| error.to_string()),
                Err(_) => Err("the directory does not respond".to_owned()),
            };
            let found = found.and_then(|()| match self.store.unkept() {
                kinds if kinds.is_empty() => Ok(()),
                kinds => Err(format!("not saved, or unreadable at startup: {}", kinds.join(", "))),
            });
            let unkept = found.err();
            if let Some(error) = &unkept
                && unkept != self.unkept
            {
                tracing::warn!(%error, "some state in state.dir will not survive a restart");
            }
            self.unkept = unkept;
        }
        put_node_row(rows, &m::gpu_exporter_state_writable, (), f64::from(u8::from(self.unkept.is_none())));
    }
}

/// Adds the rows of the serving process.
fn serve(rows: &mut Rows) -> procfs::ProcResult<()> {
    let me = Process::myself()?;
    let stat = me.stat()?;
    let cpu = cpu_seconds(&stat);
    let resident = (stat.rss * procfs::page_size()) as f64;
    let boot = procfs::boot_time_secs()?;
    let started = boot as f64 + stat.starttime as f64 / procfs::ticks_per_second() as f64;
    let fds = me.fd_count()? as f64;
    put_node_row(rows, &m::process_cpu_seconds_total, (), cpu);
    put_node_row(rows, &m::process_resident_memory_bytes, (), resident);
    put_node_row(rows, &m::process_virtual_memory_bytes, (), stat.vsize as f64);
    put_node_row(rows, &m::process_open_fds, (), fds);
    if let LimitValue::Value(most) = me.limits()?.max_open_files.soft_limit {
        put_node_row(rows, &m::process_max_fds, (), most as f64);
    }
    put_node_row(rows, &m::process_threads, (), stat.num_threads as f64);
    put_node_row(rows, &m::process_start_time_seconds, (), started);
    put_node_row(rows, &m::gpu_exporter_cpu_seconds_total, (Role::Serve,), cpu);
    put_node_row(rows, &m::gpu_exporter_resident_memory_bytes, (Role::Serve,), resident);
    Ok(())
}

/// Adds the rows of the child processes. The CPU time of ended canaries and topology processes is tracked per process;
/// the remaining CPU time of ended children belongs to samplers.
fn children(parts: &Parts, rows: &mut Rows, published: &mut PublishedCpu) {
    let known = |alive: &[i32], cpu: Duration| (alive.to_vec(), cpu.as_secs_f64());
    let (ended, (canaries, ended_canaries), (topology_children, ended_topology)) =
        parts.canary_children.look(|alive, cpu| {
            let canaries = known(alive, cpu);
            parts.topology_children.look(|alive, cpu| {
                let ended = getrusage(UsageWho::RUSAGE_CHILDREN).map(|usage| {
                    let times = [usage.user_time(), usage.system_time()];
                    times.iter().map(|t| t.tv_sec() as f64 + t.tv_usec() as f64 * 1e-6).sum::<f64>()
                });
                (ended, canaries, known(alive, cpu))
            })
        });
    match ended {
        Ok(ended) => {
            let samplers = lock(&parts.samplers).clone();
            let ended = (ended - ended_canaries - ended_topology).max(0.0);
            family(rows, Role::Sampler, &samplers, ended, &mut published[0]);
        }
        Err(error) => tracing::warn!(%error, "failed to read the CPU time of ended samplers"),
    }
    family(rows, Role::Canary, &canaries, ended_canaries, &mut published[1]);
    family(rows, Role::Topology, &topology_children, ended_topology, &mut published[2]);
}

/// Adds the rows of the children with one role. `alive` are their process IDs, `ended` is the CPU time of the ended
/// ones in seconds.
fn family(rows: &mut Rows, role: Role, alive: &[i32], ended: f64, published: &mut f64) {
    let mut cpu = ended;
    let mut resident = 0.0;
    for pid in alive {
        // A process that ended after it was listed counts as ended in the next reading.
        let Ok(stat) = Process::new(*pid).and_then(|p| p.stat()) else { continue };
        cpu += cpu_seconds(&stat);
        resident += (stat.rss * procfs::page_size()) as f64;
    }
    *published = cpu.max(*published);
    put_node_row(rows, &m::gpu_exporter_cpu_seconds_total, (role,), *published);
    put_node_row(rows, &m::gpu_exporter_resident_memory_bytes, (role,), resident);
}

/// Adds the counters of the HTTP server.
fn http_server(stats: &HttpCounters, rows: &mut Rows) {
    for status in HttpStatus::ALL {
        put_node_row(rows, &m::gpu_exporter_http_requests_total, (*status,), stats.answers(*status) as f64);
    }
    put_node_row(rows, &m::gpu_exporter_http_connections, (), stats.connections() as f64);
    put_node_row(rows, &m::gpu_exporter_http_connections_refused_total, (), stats.refused() as f64);
    put_node_row(rows, &m::gpu_exporter_http_connections_evicted_total, (), stats.evicted() as f64);
}

/// Adds the state of the web configuration and of the certificate.
fn web_config(access: &Access, stats: &HttpCounters, rows: &mut Rows) {
    let successful = f64::from(u8::from(access.problems().is_empty()));
    put_node_row(rows, &m::gpu_exporter_web_config_last_reload_successful, (), successful);
    let Some(tls) = &access.current().tls else { return };
    let failed = stats.handshakes_failed() as f64;
    put_node_row(rows, &m::gpu_exporter_http_handshakes_failed_total, (), failed);
    if let Some(expires) = tls.expires() {
        put_node_row(rows, &m::gpu_exporter_certificate_expiry_timestamp_seconds, (), expires);
    }
}

fn cpu_seconds(stat: &procfs::process::Stat) -> f64 {
    (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64
}
