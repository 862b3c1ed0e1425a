//! The two system calls for memory on a specific NUMA node. No dependency of this workspace wraps them.

#![allow(unsafe_code)]

use std::io;

use memmap2::MmapMut;

/// Number of nodes in a mask, equal to the kernel's limit (`CONFIG_NODES_SHIFT`) of 1024.
const NODES: usize = 1024;
const BITS: usize = libc::c_ulong::BITS as usize;
/// Policy of linux/mempolicy.h that allocates pages only on the nodes of the mask.
const MPOL_BIND: libc::c_ulong = 2;
/// Flags of linux/mempolicy.h that request the node (1) of an address (2).
const MPOL_F_NODE_ADDR: libc::c_ulong = 1 | 2;

/// Binds a mapping to one node. No page of the mapping may have been touched before, because touched pages do not move.
pub fn bind(memory: &mut MmapMut, node: u32) -> io::Result<()> {
    let mut mask = [0 as libc::c_ulong; NODES / BITS];
    let node = usize::try_from(node).map_err(io::Error::other)?;
    let word = mask.get_mut(node / BITS).ok_or(io::ErrorKind::InvalidInput)?;
    *word |= 1 << (node % BITS);
    // SAFETY: The range is an exclusively borrowed mapping of this length. The call changes the node that its pages are
    // allocated on and leaves their contents unchanged. The kernel reads the mask only during the call. The mask has
    // `NODES` bits, and the kernel reads one bit less than the argument.
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

/// Returns the node of the page that contains this byte.
pub fn node_of(byte: &u8) -> io::Result<u32> {
    let mut node: libc::c_int = -1;
    // SAFETY: With these flags the kernel writes one number to `node` and only resolves the page of the address. The
    // address is that of a borrowed byte, and no mask is passed.
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
