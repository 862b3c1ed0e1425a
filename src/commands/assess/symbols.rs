//! Names of functions: from the symbol table of the file that holds them, or the dynamic one where that was stripped.
//! Functions that were inlined count for the one that they are in.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::PathBuf;

use assess::recording::{CUT_OFF, CallerShare, HotFunction, HotFunctions, KERNEL};
use host::Host;
use object::{Object, ObjectSegment, ObjectSymbol, ReadCache, SymbolKind};

use super::maps::{AddressSpaces, CodePlace};
use super::samples::{ClockProfile, HERTZ};

/// Longest name that is kept.
const LONGEST: usize = 200;

/// The functions of one file.
#[derive(Debug, Default)]
struct FunctionTable {
    /// Start, end, name as in the file; by start.
    functions: Vec<(u64, u64, String)>,
    /// Offset in the file, length, address.
    segments: Vec<(u64, u64, u64)>,
}

impl FunctionTable {
    fn read(path: &std::path::Path) -> Option<FunctionTable> {
        // The process may have put a pipe there, which would not open.
        std::fs::metadata(path).ok().filter(|found| found.is_file())?;
        let cache = ReadCache::new(File::open(path).ok()?);
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
        let mut functions: Vec<_> = object.symbols().filter(is_code).filter_map(function).collect();
        if functions.is_empty() {
            functions = object.dynamic_symbols().filter(is_code).filter_map(function).collect();
        }
        functions.sort_unstable();
        functions.dedup_by_key(|(start, ..)| *start);
        // Functions in assembler may have no size.
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

/// Names places, each file read once.
pub struct Symbols<'a> {
    spaces: &'a AddressSpaces,
    host: &'a Host,
    tables: HashMap<u32, Option<FunctionTable>>,
}

impl<'a> Symbols<'a> {
    pub fn new(spaces: &'a AddressSpaces, host: &'a Host) -> Symbols<'a> {
        Symbols { spaces, host, tables: HashMap::new() }
    }

    /// Name of the function and path of its file; without a name where there is none.
    fn name(&mut self, place: CodePlace) -> (Option<String>, String) {
        if place == CodePlace::KERNEL {
            return (Some(KERNEL.into()), String::new());
        }
        let Some((path, pid)) = self.spaces.file(place.file) else { return (None, String::new()) };
        let table = self.tables.entry(place.file).or_insert_with(|| {
            // The process may see other files, and may have ended.
            let inside = self.host.path(format!("/proc/{pid}/root{path}"));
            FunctionTable::read(&inside).or_else(|| FunctionTable::read(&PathBuf::from(path)))
        });
        let name = table.as_ref().and_then(|table| table.name(place.offset)).map(demangle);
        (name, path.clone())
    }

    /// The profile by functions.
    pub fn functions(mut self, profile: &ClockProfile) -> HotFunctions {
        type Callers = BTreeMap<String, u64>;
        let mut functions: BTreeMap<(Option<String>, String), (u64, Callers)> = BTreeMap::new();
        for ((place, caller), samples) in &profile.places {
            let key = self.name(*place);
            let caller =
                caller.and_then(|caller| self.name(caller).0).filter(|caller| key.0.as_ref() != Some(caller));
            let (sum, callers) = functions.entry(key).or_default();
            *sum += samples;
            if let Some(caller) = caller {
                *callers.entry(caller).or_default() += samples;
            }
        }
        let unnamed = functions.iter().filter(|((name, _), _)| name.is_none()).map(|(_, (sum, _))| sum).sum();
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
            functions,
        }
    }
}

/// As the source has it.
fn demangle(name: &str) -> String {
    let name = match rustc_demangle::try_demangle(name) {
        Ok(rust) => format!("{rust:#}"),
        Err(_) => {
            let cpp = cpp_demangle::Symbol::new(name).ok().and_then(|symbol| symbol.demangle().ok());
            cpp.unwrap_or_else(|| name.to_owned())
        }
    };
    name.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_source() {
        assert_eq!(demangle("_ZN3hot4sort17h0123456789abcdefE"), "hot::sort");
        assert_eq!(demangle("_ZN3abc3defEi"), "abc::def(int)");
        assert_eq!(demangle("memcpy"), "memcpy");
    }

    #[test]
    fn a_file_without_symbols_or_without_a_file_has_no_names() {
        assert!(FunctionTable::read(std::path::Path::new("/dev/null")).is_none());
        assert!(FunctionTable::read(std::path::Path::new("/nowhere")).is_none());
        let own = FunctionTable::read(&std::env::current_exe().unwrap()).unwrap();
        assert!(!own.functions.is_empty() && own.name(0).is_none());
    }
}
