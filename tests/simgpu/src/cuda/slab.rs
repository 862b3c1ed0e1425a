//! Things that a caller knows by a handle. A handle is a number that says what it is, never an address:
//! a wrong one is refused, not followed. None is given twice.

use std::ffi::c_void;

use super::result::cu;
use crate::value::{Answer, Code};

/// Things of one kind.
pub struct Slab<T> {
    tag: usize,
    /// What a call with a wrong handle returns.
    wrong: Code,
    items: Vec<Option<T>>,
}

impl<T> Slab<T> {
    /// An empty one. The tag is a word of four characters.
    pub const fn new(tag: u32, wrong: Code) -> Slab<T> {
        Slab { tag: (tag as usize) << 32, wrong, items: Vec::new() }
    }

    /// Handles of this kind are refused with `CUDA_ERROR_INVALID_HANDLE`.
    pub const fn of(tag: u32) -> Slab<T> {
        Slab::new(tag, cu::INVALID_HANDLE)
    }

    /// Adds one.
    pub fn add(&mut self, item: T) -> *mut c_void {
        self.items.push(Some(item));
        std::ptr::without_provenance_mut(self.tag + self.items.len() * 16)
    }

    fn index(&self, handle: *mut c_void) -> Answer<usize> {
        let number = handle.addr().checked_sub(self.tag + 16).filter(|n| n % 16 == 0);
        number.map(|n| n / 16).filter(|n| *n < self.items.len()).ok_or(self.wrong)
    }

    /// The one of that handle.
    pub fn get(&self, handle: *mut c_void) -> Answer<&T> {
        self.items[self.index(handle)?].as_ref().ok_or(self.wrong)
    }

    /// See `get`.
    pub fn get_mut(&mut self, handle: *mut c_void) -> Answer<&mut T> {
        let index = self.index(handle)?;
        self.items[index].as_mut().ok_or(self.wrong)
    }

    /// Takes one out.
    pub fn take(&mut self, handle: *mut c_void) -> Answer<T> {
        let index = self.index(handle)?;
        self.items[index].take().ok_or(self.wrong)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().flatten()
    }

    /// Takes out all but those that are to stay.
    pub fn retain(&mut self, mut stay: impl FnMut(&T) -> bool) {
        for item in &mut self.items {
            if item.as_ref().is_some_and(|item| !stay(item)) {
                *item = None;
            }
        }
    }
}
