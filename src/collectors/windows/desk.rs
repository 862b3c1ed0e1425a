//! Both folders of windows together, and what people ask of them. Whoever looks or changes something holds the
//! desk, and tells the ledger before letting go: so what is told last is what is so.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::collectors::windows::file::{self, Plan};
use crate::collectors::windows::folder::Folder;
use host::Host;
use ledger::inbox::{Event, Inbox};
use model::catalog::WindowKind;
use model::catalog::schema::KnownLabel;
use model::sample::Source;
use model::text;
use model::window::Window;
use model::window::{self, MOST};
use settings::Config;

/// A window of one's own that ended so long ago is forgotten when a new one is made, in seconds.
const FORGOTTEN: f64 = 24.0 * 3600.0;

/// The folders.
#[derive(Debug)]
pub struct Desk(Mutex<Shelf>);

#[derive(Debug)]
struct Shelf {
    dropped: Folder,
    own: Folder,
    /// Whether there is a folder of drop-in files.
    drops: bool,
    longest: Duration,
    said: Option<Vec<Window>>,
    said_problems: Vec<String>,
}

/// A window that is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// Its name; without one it gets one.
    pub name: Option<String>,
    /// What it is to be.
    pub plan: Plan,
}

impl Desk {
    /// The folders that are configured.
    pub fn new(config: &Config) -> Desk {
        let dir = &config.windows.dir;
        Desk(Mutex::new(Shelf {
            dropped: Folder::new(Host::new(&config.host.root).path(dir)),
            own: Folder::new(config.state.dir.join("windows")),
            drops: !dir.as_os_str().is_empty(),
            longest: config.windows.max_duration,
            said: None,
            said_problems: Vec::new(),
        }))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Shelf) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks at both folders and tells the ledger what has changed.
    pub fn look(&self, inbox: &Inbox, now: f64) {
        self.with(|shelf| shelf.tell(inbox, now));
    }

    /// Every window that is open, to come, or ended lately, and what is wrong.
    pub fn list(&self, now: f64) -> (Vec<Window>, Vec<String>) {
        self.with(|shelf| shelf.look(now))
    }

    /// Makes a window.
    pub fn start(&self, order: Order, inbox: &Inbox, now: f64) -> Result<Window, String> {
        self.with(|shelf| {
            let window = shelf.start(order, now);
            shelf.tell(inbox, now);
            window
        })
    }

    /// Ends a window, or, without a name, all that were made here.
    pub fn end(&self, name: Option<&str>, inbox: &Inbox, now: f64) -> Result<Vec<Window>, String> {
        self.with(|shelf| {
            let ended = shelf.end(name, now);
            shelf.tell(inbox, now);
            ended
        })
    }
}

impl Shelf {
    fn look(&mut self, now: f64) -> (Vec<Window>, Vec<String>) {
        let mut problems = if self.drops { self.dropped.look() } else { Vec::new() };
        problems.append(&mut self.own.look());
        let of = |folder: &Folder, ordered: bool| -> Vec<Window> {
            folder.plans().map(|(name, plan)| plan.window(name, self.longest, ordered)).collect()
        };
        let mut windows = of(&self.dropped, false);
        for window in of(&self.own, true) {
            // One name is one window.
            match self.dropped.has(&window.name) {
                true => problems.push(format!(
                    "{}: there is a {} too, which counts",
                    self.own.file(&window.name).display(),
                    self.dropped.file(&window.name).display()
                )),
                false => windows.push(window),
            }
        }
        windows.retain(|window| window.is_told(now));
        windows.sort_by(|a, b| a.start.total_cmp(&b.start).then_with(|| a.name.cmp(&b.name)));
        (windows, problems)
    }

    fn tell(&mut self, inbox: &Inbox, now: f64) {
        let (windows, problems) = self.look(now);
        for problem in problems.iter().filter(|problem| !self.said_problems.contains(problem)) {
            tracing::warn!(%problem, "a window of planned work");
        }
        let known = |window: &Window| self.said.iter().flatten().any(|w| w == window);
        for window in windows.iter().filter(|window| window.cut && !known(window)) {
            tracing::warn!(
                window = window.name,
                "it was planned longer than windows.max_duration, and ends at {}",
                window::write(window.end)
            );
        }
        if self.said.as_ref() != Some(&windows) {
            inbox.event(Event::Windows(windows.clone()));
            self.said = Some(windows);
        }
        if self.said_problems != problems {
            let text = (!problems.is_empty()).then(|| problems.join("; "));
            inbox.event(Event::Hindered(Source::Windows, text));
            self.said_problems = problems;
        }
    }

    fn start(&mut self, order: Order, now: f64) -> Result<Window, String> {
        let (windows, _) = self.look(now);
        let Order { name, plan } = order;
        let window = |name: &str| plan.window(name, self.longest, true);
        if window("").end <= now {
            return Err("it would have ended already; look at --at and --for".into());
        }
        let name = match name {
            Some(name) if !file::is_name(&name) => return Err(format!("--name: {}", file::NAME_RULE)),
            Some(name) => name,
            None => self.free_name(plan.kind, plan.start),
        };
        if self.dropped.has(&name) {
            let file = self.dropped.file(&name);
            return Err(format!("window {name} is that of {}; choose another --name", file.display()));
        }
        if let Some(there) = windows.iter().find(|window| window.name == name && now < window.end) {
            return Err(format!(
                "there is a window {name} until {}; end it with `gpu-node-exporter window end {name}`, or choose \
                 another --name",
                window::write(there.end)
            ));
        }
        let forgotten: Vec<String> = self
            .own
            .plans()
            .filter(|(_, plan)| plan.end + FORGOTTEN < now)
            .map(|(name, _)| name.to_owned())
            .collect();
        for name in forgotten {
            remove(&self.own.file(&name)).map_err(|error| error.to_string())?;
        }
        self.own.look();
        if self.own.len() >= MOST && !self.own.has(&name) {
            return Err(format!(
                "there are {} windows already; remove files that are not needed from {}",
                self.own.len(),
                self.own.path().display()
            ));
        }
        let plan = Plan { end: window(&name).end, ..plan.clone() };
        let cut = window(&name).cut;
        self.write(&name, &plan)?;
        Ok(Window { cut, ..plan.window(&name, self.longest, true) })
    }

    fn end(&mut self, name: Option<&str>, now: f64) -> Result<Vec<Window>, String> {
        let (windows, _) = self.look(now);
        let lasting: Vec<Window> = windows.into_iter().filter(|window| now < window.end).collect();
        let wanted = match name {
            None => lasting.into_iter().filter(|window| window.ordered).collect(),
            Some(name) => match lasting.iter().find(|window| window.name == name) {
                Some(window) if !window.ordered => {
                    let file = self.dropped.file(name);
                    return Err(format!(
                        "window {name} is that of {}: change or remove that file",
                        file.display()
                    ));
                }
                Some(window) => vec![window.clone()],
                None => {
                    let known: Vec<&str> = lasting.iter().map(|window| window.name.as_str()).collect();
                    let known = if known.is_empty() { "there is none".into() } else { known.join(", ") };
                    return Err(format!(
                        "no window {} that is open or to come: {known}",
                        text::clean(name, 64)
                    ));
                }
            },
        };
        let mut ended = Vec::new();
        for window in wanted {
            if window.start >= now {
                remove(&self.own.file(&window.name)).map_err(|error| error.to_string())?;
                ended.push(window);
                continue;
            }
            // To whole seconds, as it is written, and never at its own start.
            let end = now.floor().max(window.start.floor() + 1.0);
            let plan = Plan { kind: window.kind, reason: window.reason.clone(), start: window.start, end };
            self.write(&window.name, &plan)?;
            ended.push(Window { end, ..window });
        }
        Ok(ended)
    }

    /// A name that no window has: the kind and when it begins.
    fn free_name(&self, kind: WindowKind, start: f64) -> String {
        let digits: String = window::write(start).chars().filter(char::is_ascii_digit).take(12).collect();
        let first = format!("{}-{digits}", kind.known());
        let names = std::iter::once(first.clone()).chain((2..).map(|n| format!("{first}-{n}")));
        let mut free = names.filter(|name| !self.own.has(name) && !self.dropped.has(name));
        free.next().unwrap_or(first)
    }

    /// Writes a file: to a new one beside it, to the disk, then in its place.
    fn write(&self, name: &str, plan: &Plan) -> Result<(), String> {
        let write = || -> io::Result<()> {
            fs::create_dir_all(self.own.path())?;
            // No window is read from a file without its ending.
            let fresh = self.own.path().join(format!("{name}.new"));
            let mut file = File::create(&fresh)?;
            file.write_all(file::write(plan).as_bytes())?;
            file.sync_all()?;
            fs::rename(&fresh, self.own.file(name))?;
            File::open(self.own.path())?.sync_all()
        };
        write().map_err(|error| {
            format!(
                "{}: {error}; the daemon must be able to write to state.dir",
                self.own.file(name).display()
            )
        })
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::clock::Mono;

    const NOW: f64 = 1_800_000_000.0;

    struct Bench {
        dir: tempfile::TempDir,
        inbox: Inbox,
        desk: Desk,
    }

    impl Bench {
        fn new() -> Bench {
            let dir = tempfile::tempdir().unwrap();
            let desk = Desk::new(&config(dir.path()));
            Bench { dir, inbox: Inbox::default(), desk }
        }

        fn order(&self, name: &str, start: f64, lasts: f64) -> Result<Window, String> {
            let plan =
                Plan { kind: WindowKind::Maintenance, reason: "disk".into(), start, end: start + lasts };
            let name = Some(name.to_owned()).filter(|name| !name.is_empty());
            self.desk.start(Order { name, plan }, &self.inbox, NOW)
        }

        fn drop_in(&self, name: &str, text: &str) {
            let folder = self.dir.path().join("etc/windows.d");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(format!("{name}.toml")), text).unwrap();
        }

        /// The windows that the ledger was told, and what it was told is wrong.
        fn told(&self) -> Vec<Event> {
            self.inbox.take(Mono::now()).unwrap().events.into()
        }

        fn names(&self, now: f64) -> Vec<String> {
            self.desk.list(now).0.into_iter().map(|window| window.name).collect()
        }
    }

    fn config(dir: &Path) -> Config {
        let mut config = Config::default();
        config.host.root = dir.to_owned();
        config.state.dir = dir.join("state");
        config.windows.dir = "/etc/windows.d".into();
        config.windows.max_duration = Duration::from_secs(7200);
        config
    }

    #[test]
    fn a_window_is_made_kept_and_ended() {
        let bench = Bench::new();
        let window = bench.order("disk", NOW, 600.0).unwrap();
        assert_eq!((window.end, window.cut, window.ordered), (NOW + 600.0, false, true));
        assert!(
            matches!(&bench.told()[..], [Event::Windows(windows)] if windows == std::slice::from_ref(&window))
        );
        bench.desk.look(&bench.inbox, NOW + 1.0);
        assert!(bench.told().is_empty(), "what has not changed is not told again");

        let again = Desk::new(&config(bench.dir.path()));
        assert_eq!(again.list(NOW).0, [window], "it lives through a restart");

        let ended = bench.desk.end(Some("disk"), &bench.inbox, NOW + 10.5).unwrap();
        assert_eq!(ended[0].end, NOW + 10.0);
        assert_eq!(bench.names(NOW + 3609.0), ["disk"], "it is told for an hour");
        assert!(bench.names(NOW + 3611.0).is_empty());
        let error = bench.desk.end(Some("disk"), &bench.inbox, NOW + 20.0).unwrap_err();
        assert!(error.contains("no window disk") && error.contains("there is none"), "{error}");
        let plan = Plan { kind: WindowKind::Training, reason: String::new(), start: NOW, end: NOW + 60.0 };
        let order = Order { name: Some("disk".into()), plan };
        assert!(bench.desk.start(order, &bench.inbox, NOW + 20.0).is_ok(), "the name is free again");
    }

    #[test]
    fn what_is_to_come_goes_without_a_trace_and_all_end_together() {
        let bench = Bench::new();
        bench.order("later", NOW + 100.0, 60.0).unwrap();
        bench.order("", NOW - 5.0, 60.0).unwrap();
        bench.order("", NOW - 5.0, 60.0).unwrap();
        bench.drop_in("fixed", "start = 2027-01-15T08:00:00Z\nfor = '1h'");
        assert_eq!(bench.names(NOW).len(), 4);
        let ended = bench.desk.end(None, &bench.inbox, NOW).unwrap();
        assert_eq!(ended.len(), 3, "{ended:?}");
        assert_eq!(bench.names(NOW).iter().filter(|name| *name == "later").count(), 0);
        let error = bench.desk.end(Some("fixed"), &bench.inbox, NOW).unwrap_err();
        assert!(error.contains("windows.d/fixed.toml"), "{error}");
    }

    #[test]
    fn orders_that_cannot_be_are_refused_with_the_next_step() {
        let bench = Bench::new();
        bench.order("disk", NOW, 600.0).unwrap();
        bench.drop_in("fixed", "start = 'soon'");
        for (name, start, said) in [
            ("disk", NOW, "window end disk"),
            ("fixed", NOW, "choose another --name"),
            ("../up", NOW, "a name is"),
            ("past", NOW - 900.0, "--at"),
        ] {
            let error = bench.order(name, start, 600.0).unwrap_err();
            assert!(error.contains(said), "{name}: {error}");
        }
        let long = bench.order("long", NOW, 1e9).unwrap();
        assert_eq!((long.end, long.cut), (NOW + 7200.0, true));
    }

    #[test]
    fn a_drop_in_file_wins_and_what_is_wrong_is_told_until_it_is_mended() {
        let bench = Bench::new();
        bench.order("disk", NOW, 600.0).unwrap();
        bench.told();
        bench.drop_in("disk", "start = 2027-01-15T08:00:00Z\nfor = '1h'\nkind = 'training'");
        bench.drop_in("bad", "start = 1");
        bench.desk.look(&bench.inbox, NOW);
        let told = bench.told();
        let [Event::Windows(windows), Event::Hindered(Source::Windows, Some(text))] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!((windows.len(), windows[0].kind, windows[0].ordered), (1, WindowKind::Training, false));
        assert!(text.contains("bad.toml: key `start`") && text.contains("which counts"), "{text}");
        fs::remove_dir_all(bench.dir.path().join("etc")).unwrap();
        bench.desk.look(&bench.inbox, NOW);
        assert!(matches!(&bench.told()[1..], [Event::Hindered(Source::Windows, None)]));
    }

    #[test]
    fn the_folder_does_not_fill_up() {
        let bench = Bench::new();
        for n in 0..MOST {
            bench.order(&format!("w{n}"), NOW, 60.0).unwrap();
        }
        let error = bench.order("one-more", NOW, 60.0).unwrap_err();
        assert!(error.contains("64 windows already"), "{error}");
        let plan =
            Plan { kind: WindowKind::Training, reason: String::new(), start: NOW + 1e5, end: NOW + 1.1e5 };
        let order = Order { name: None, plan };
        assert!(
            bench.desk.start(order, &bench.inbox, NOW + 90_000.0).is_ok(),
            "those long over are forgotten"
        );
    }

    #[test]
    fn a_clock_that_goes_back_loses_nothing() {
        let bench = Bench::new();
        bench.order("disk", NOW, 600.0).unwrap();
        assert!(bench.names(NOW + 1e6).is_empty());
        assert_eq!(bench.names(NOW - 1e6), ["disk"]);
    }
}
