//! Memory of one NUMA node: the two system calls for it, which no crate in use wraps.

#![allow(unsafe_code)]

use std::io;

use memmap2::MmapMut;

/// Nodes a mask has room for; the kernel's own limit (`CONFIG_NODES_SHIFT`) is 1024.
const NODES: usize = 1024;
const BITS: usize = libc::c_ulong::BITS as usize;
/// Of linux/mempolicy.h: pages come only from the nodes in the mask.
const MPOL_BIND: libc::c_ulong = 2;
/// Of linux/mempolicy.h: the node (1) of an address (2).
const MPOL_F_NODE_ADDR: libc::c_ulong = 1 | 2;

/// Lets the pages of a mapping, none of which was touched yet, come only from this node.
pub fn bind(memory: &mut MmapMut, node: u32) -> io::Result<()> {
    let mut mask = [0 as libc::c_ulong; NODES / BITS];
    let node = usize::try_from(node).map_err(io::Error::other)?;
    let word = mask.get_mut(node / BITS).ok_or(io::ErrorKind::InvalidInput)?;
    *word |= 1 << (node % BITS);
    // SAFETY: The range is a mapping of our own, borrowed exclusively, of this length; the call changes where its
    // pages come from and nothing that is in them. The mask is read only during the call and holds as many bits as
    // given, less one, as the kernel counts them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            memory.as_mut_ptr(),
            memory.len(),
            MPOL_BIND,
            mask.as_ptr(),
            NODES + 1,
            0 as libc::c_ulong,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Node that the page of this byte is on.
pub fn node_of(byte: &u8) -> io::Result<u32> {
    let mut node: libc::c_int = -1;
    // SAFETY: With these flags the kernel writes one number to `node` and only looks up the page of the address, which
    // is that of a borrowed byte; there is no mask.
    let done = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            std::ptr::null_mut::<libc::c_ulong>(),
            0 as libc::c_ulong,
            std::ptr::from_ref(byte),
            MPOL_F_NODE_ADDR,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(node).map_err(io::Error::other)
}
