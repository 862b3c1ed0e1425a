//! Names of functions, from the symbol table of a file, or from the dynamic symbol table of a stripped file.
//! An inlined function counts for the function that contains it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;

use assess::recording::{CUT_OFF, CallerShare, HotFunction, HotFunctions, KERNEL};
use host::Host;
use object::{Object, ObjectSegment, ObjectSymbol, ReadCache, SymbolKind};

use super::maps::{self, AddressSpaces, CodePlace};
use super::samples::{ClockProfile, HERTZ};

/// Maximum length of a name.
const LONGEST: usize = 200;
/// Maximum number of functions of a file, because a watched process chooses the files that it maps.
const MOST_FUNCTIONS: usize = 4_000_000;

/// Functions of one file.
#[derive(Debug, Default)]
struct FunctionTable {
    /// Start, end and mangled name, sorted by start.
    functions: Vec<(u64, u64, String)>,
    /// Offset in the file, length and address.
    segments: Vec<(u64, u64, u64)>,
}

impl FunctionTable {
    fn read(file: File) -> Option<FunctionTable> {
        let cache = ReadCache::new(file);
        let object = object::File::parse(&cache).ok()?;
        let segments = object.segments().map(|segment| {
            let (offset, length) = segment.file_range();
            (offset, length, segment.address())
        });
        let is_code =
            |symbol: &object::Symbol<'_, '_, _>| symbol.kind() == SymbolKind::Text && symbol.is_definition();
        let function = |symbol: object::Symbol<'_, '_, _>| {
            let start = symbol.address();
            Some((start, start.saturating_add(symbol.size()), symbol.name().ok()?.to_owned()))
        };
        let mut functions: Vec<_> =
            object.symbols().filter(is_code).filter_map(function).take(MOST_FUNCTIONS).collect();
        if functions.is_empty() {
            let symbols = object.dynamic_symbols().filter(is_code).filter_map(function);
            functions = symbols.take(MOST_FUNCTIONS).collect();
        }
        functions.sort_unstable();
        functions.dedup_by_key(|(start, ..)| *start);
        // Assembler functions may have no size.
        for at in 0..functions.len().saturating_sub(1) {
            if functions[at].0 == functions[at].1 {
                functions[at].1 = functions[at + 1].0;
            }
        }
        Some(FunctionTable { segments: segments.collect(), functions })
    }

    fn name(&self, offset: u64) -> Option<&str> {
        let within = |(start, length, _): &&(u64, u64, u64)| offset >= *start && offset - start < *length;
        let (start, _, address) = self.segments.iter().find(within)?;
        let address = address.checked_add(offset - start)?;
        let at = self.functions.partition_point(|(start, ..)| *start <= address).checked_sub(1)?;
        let (_, end, name) = &self.functions[at];
        (address < *end).then_some(name)
    }
}

/// Names places; reads every file once.
pub(crate) struct Symbols<'a> {
    spaces: &'a AddressSpaces,
    host: &'a Host,
    /// `None` if the file cannot be read.
    tables: HashMap<u32, Option<FunctionTable>>,
}

impl<'a> Symbols<'a> {
    pub fn new(spaces: &'a AddressSpaces, host: &'a Host) -> Symbols<'a> {
        Symbols { spaces, host, tables: HashMap::new() }
    }

    /// Returns the name of the function and the path of its file. The name is `None` if it is unknown.
    fn name(&mut self, place: CodePlace) -> (Option<String>, String) {
        if place == CodePlace::KERNEL {
            return (Some(KERNEL.into()), String::new());
        }
        let Some(file) = self.spaces.file(place.file) else { return (None, String::new()) };
        let table = self.tables.entry(place.file).or_insert_with(|| {
            // The process may have another root, and may have exited.
            let inside = self.host.path(format!("/proc/{}/root", file.pid));
            let opened = self.spaces.opened(place.file).or_else(|| maps::open(&inside, file));
            let opened = opened.or_else(|| maps::open(&self.host.path("/"), file))?;
            Some(FunctionTable::read(opened).unwrap_or_default())
        });
        let name = table.as_ref().and_then(|table| table.name(place.offset)).map(demangle);
        (name, file.path.clone())
    }

    /// Returns true if a place has no name because its file cannot be read.
    fn is_unreadable(&self, place: CodePlace) -> bool {
        let is_file = self.spaces.file(place.file).is_some_and(|file| file.inode != 0);
        is_file && self.tables.get(&place.file).is_some_and(Option::is_none)
    }

    /// Groups the samples by function.
    pub fn functions(mut self, profile: &ClockProfile) -> HotFunctions {
        type Callers = BTreeMap<String, u64>;
        let mut functions: BTreeMap<(Option<String>, String), (u64, Callers)> = BTreeMap::new();
        let (mut unnamed, mut unreadable) = (0, 0);
        for ((place, caller), samples) in &profile.places {
            let mut key = self.name(*place);
            if key.0.is_none() {
                unnamed += samples;
                if self.is_unreadable(*place) {
                    unreadable += samples;
                    key.0 =
                        Some(format!("[{} is not readable]", key.1.rsplit('/').next().unwrap_or_default()));
                }
            }
            let caller =
                caller.and_then(|caller| self.name(caller).0).filter(|caller| key.0.as_ref() != Some(caller));
            let (sum, callers) = functions.entry(key).or_default();
            *sum += samples;
            if let Some(caller) = caller {
                *callers.entry(caller).or_default() += samples;
            }
        }
        let all = profile.samples.max(1) as f64;
        let mut functions: Vec<HotFunction> = functions
            .into_iter()
            .filter(|(_, (samples, _))| *samples as f64 / all >= CUT_OFF)
            .map(|((name, file), (samples, callers))| {
                let share = |of: u64| of as f64 / samples as f64;
                let mut callers: Vec<CallerShare> =
                    callers.into_iter().map(|(name, of)| CallerShare { name, share: share(of) }).collect();
                callers.sort_by(|a, b| b.share.total_cmp(&a.share));
                let name = name.unwrap_or_else(|| match file.rsplit('/').next() {
                    None | Some("") => "[code without a file]".into(),
                    Some(file) => format!("[no symbol in {file}]"),
                });
                HotFunction { name, file, samples, share: samples as f64 / all, callers }
            })
            .collect();
        functions.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.name.cmp(&b.name)));
        HotFunctions {
            hertz: HERTZ,
            samples: profile.samples,
            lost: profile.lost,
            with_kernel: profile.with_kernel,
            unnamed,
            unreadable,
            functions,
        }
    }
}

/// Start of a name. Writing fails when the limit is reached, because nested templates make names of any
/// length.
struct BoundedName(String);

impl fmt::Write for BoundedName {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = LONGEST - self.0.chars().count();
        self.0.extend(text.chars().take(left));
        if text.chars().nth(left).is_none() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// Returns the name as written in the source.
fn demangle(name: &str) -> String {
    use fmt::Write;
    let mut bounded = BoundedName(String::new());
    let whole = match rustc_demangle::try_demangle(name) {
        Ok(rust) => write!(bounded, "{rust:#}"),
        Err(_) => cpp_demangle::Symbol::new(name).map_or(Err(fmt::Error), |symbol| {
            symbol.structured_demangle(&mut bounded, &cpp_demangle::DemangleOptions::default())
        }),
    };
    match whole {
        Err(_) if bounded.0.chars().count() < LONGEST => name.chars().take(LONGEST).collect(),
        _ => bounded.0,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::super::maps::{MappedFile, open};
    use super::*;

    #[test]
    fn names_are_those_of_the_source() {
        assert_eq!(demangle("_ZN3hot4sort17h0123456789abcdefE"), "hot::sort");
        assert_eq!(demangle("_ZN3abc3defEi"), "abc::def(int)");
        assert_eq!(demangle("memcpy"), "memcpy");
        // Each parameter has the one before twice: 2^30 types.
        let digits = "0123456789ABCDEFGHIJKLMNOPQRST".chars();
        let pairs: String = digits.map(|digit| format!("S_IS{digit}_S{digit}_E")).collect();
        let name = demangle(&format!("_Z1f1PIiiE{pairs}"));
        assert!(name.starts_with("f(P<int, int>, P<P<int, int>, P<int, int> >, "), "{name}");
        assert_eq!(name.chars().count(), LONGEST, "{name}");
    }

    #[test]
    fn a_file_without_symbols_or_without_a_file_has_no_names() {
        let mapped = |path: &str, inode: u64| MappedFile { path: path.into(), inode, pid: 1 };
        let root = Path::new("/");
        assert!(["/dev/null", "/nowhere", "/"].iter().all(|path| open(root, &mapped(path, 0)).is_none()));
        let own = std::env::current_exe().unwrap();
        let (path, inode) = (own.to_str().unwrap(), own.metadata().unwrap().ino());
        let table = FunctionTable::read(open(root, &mapped(path, inode)).unwrap()).unwrap();
        assert!(!table.functions.is_empty() && table.name(0).is_none());
        assert!(open(root, &mapped(path, inode + 1)).is_none(), "another file by the same name");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_one_without_symbols() {
        let mut spaces = AddressSpaces::default();
        spaces.map(1, 0x1000, 0x1000, 0, "/nowhere/app", 7);
        spaces.map(1, 0x2000, 0x1000, 0, "[vdso]", 0);
        let places = [0x1100, 0x2100].map(|at| ((spaces.place(1, at), None), 5));
        let profile = ClockProfile { places: places.into(), samples: 10, ..ClockProfile::default() };
        let hot = Symbols::new(&spaces, &Host::new("/")).functions(&profile);
        assert_eq!((hot.unnamed, hot.unreadable), (10, 5));
        let names: Vec<_> = hot.functions.iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names, ["[app is not readable]", "[no symbol in [vdso]]"]);
    }

    #[test]
    fn a_file_that_is_deleted_while_it_runs_keeps_its_names() {
        let dir = tempfile::TempDir::new().unwrap();
        let copy = dir.path().join("app");
        std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        let inode = copy.metadata().unwrap().ino();
        let mut spaces = AddressSpaces::default();
        spaces.map(std::process::id(), 0x1000, 0x1000, 0, copy.to_str().unwrap(), inode);
        spaces.open_new(&Host::new("/"));
        std::fs::remove_file(&copy).unwrap();
        let places = [((spaces.place(std::process::id(), 0x1100), None), 5)];
        let profile = ClockProfile { places: places.into(), samples: 5, ..ClockProfile::default() };
        // Nothing is at that place of the file, but it is read.
        assert_eq!(Symbols::new(&spaces, &Host::new("/")).functions(&profile).unreadable, 0);
    }
}
