//! Types of the table of settings, and the `settings!` macro that generates the table.

use ::config::Value;

use super::Config;

/// A section of the configuration file.
pub(super) struct Section {
    pub name: &'static str,
    pub doc: &'static str,
    pub keys: &'static [Key],
}

type Comparison = fn(&Config) -> bool;

pub(super) struct Key {
    /// Full name in the form `section.key`.
    pub name: &'static str,
    pub doc: &'static str,
    /// Returns a description of the accepted values, for error messages.
    pub expected: fn() -> String,
    /// Stores the value. Returns false if the value has the wrong type or is out of range.
    pub set: fn(&mut Config, &Value) -> bool,
    /// Returns the value in TOML.
    pub toml: fn(&Config) -> String,
    /// Optional setting that must not be greater than this one, and the function that checks whether it is.
    pub floor: &'static [(&'static str, Comparison)],
    /// True if a new value applies without a restart.
    pub is_live: bool,
    /// Copies the value from another configuration. Returns true if the values differed.
    pub adopt: fn(&mut Config, &Config) -> bool,
}

/// Declares sections and their keys as structs with defaults, and the table [`SECTIONS`].
macro_rules! settings {
    ($($(#[doc = $about:literal])+ $section:ident: $Section:ident {
        $($(#[doc = $doc:literal])+ $(@$live:ident)? $key:ident: $type:ty = $default:expr $(, $rule:expr)? $(, >= $floor:ident)?;)+
    })+) => {
        $(
            $(#[doc = $about])+
            #[derive(Clone, Debug, PartialEq)]
            pub struct $Section {
                $($(#[doc = $doc])+ pub $key: $type,)+
            }

            impl Default for $Section {
                fn default() -> Self {
                    Self { $($key: $default,)+ }
                }
            }
        )+

        /// All sections of the configuration.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Config {
            $($(#[doc = $about])+ pub $section: $Section,)+
        }

        pub(super) const SECTIONS: &[Section] = &[$(Section {
            name: stringify!($section),
            doc: concat!($($about, "\n"),+),
            keys: &[$(Key {
                name: concat!(stringify!($section), ".", stringify!($key)),
                doc: concat!($($doc, "\n"),+),
                expected: || <$type as Setting>::expected(&settings!(@rule $($rule)?)),
                set: |config, value| {
                    <$type as Setting>::read(value, &settings!(@rule $($rule)?))
                        .map(|value| config.$section.$key = value)
                        .is_some()
                },
                toml: |config| config.$section.$key.toml(),
                floor: &[$((
                    concat!(stringify!($section), ".", stringify!($floor)),
                    |config| config.$section.$key < config.$section.$floor,
                ))?],
                is_live: settings!(@is $($live)?),
                adopt: |into, from| {
                    let differs = into.$section.$key != from.$section.$key;
                    into.$section.$key = from.$section.$key.clone();
                    differs
                },
            },)+],
        },)+];
    };
    (@is) => { false };
    (@is live) => { true };
    (@rule) => { () };
    (@rule $rule:expr) => { $rule };
}
pub(super) use settings;
