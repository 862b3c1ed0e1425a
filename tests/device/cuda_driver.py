"""The CUDA driver through ctypes: what the loads need and no more. Changes no setting of any GPU.

Sizes are in bytes. Every call's result is checked. One `Device` holds the primary context of one GPU; the
context is current for the thread that made it.
"""

from __future__ import annotations

import ctypes as c
import uuid as uuids

MULTIPROCESSORS = 16  # CUdevice_attribute
STREAM_NON_BLOCKING, EVENT_BLOCKING_SYNC = 1, 1


class CudaError(RuntimeError):
    """A call of the driver failed."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: error {code} ({text})")
        self.code = code


class Driver:
    """libcuda, started."""

    def __init__(self) -> None:
        self.lib = c.CDLL("libcuda.so.1")
        self("cuInit", c.c_uint(0))

    def __call__(self, name: str, *arguments: object) -> None:
        """Calls a function of the driver and raises if it does not succeed."""
        code = getattr(self.lib, name)(*arguments)
        if code != 0:
            text = c.c_char_p()
            self.lib.cuGetErrorString(c.c_int(code), c.byref(text))
            raise CudaError(name, code, (text.value or b"?").decode())

    def ordinal(self, uuid: str) -> int:
        """CUDA's number of the GPU with this NVML UUID."""
        count = c.c_int()
        self("cuDeviceGetCount", c.byref(count))
        seen = []
        for at in range(count.value):
            device, raw = c.c_int(), (c.c_ubyte * 16)()
            self("cuDeviceGet", c.byref(device), c.c_int(at))
            self("cuDeviceGetUuid_v2" if hasattr(self.lib, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid",
                 c.byref(raw), device)  # fmt: skip
            seen.append("GPU-" + str(uuids.UUID(bytes=bytes(raw))))
        if uuid not in seen:
            raise RuntimeError(f"CUDA does not see {uuid}, only {seen}")
        return seen.index(uuid)


class Device:
    """One GPU with its primary context."""

    def __init__(self, driver: Driver, ordinal: int, current: bool = False) -> None:
        """`current`: use the context that this thread has already, as torch made it."""
        self.driver, self.handle, self.context = driver, c.c_int(), c.c_void_p()
        driver("cuDeviceGet", c.byref(self.handle), c.c_int(ordinal))
        if current:
            driver("cuCtxGetCurrent", c.byref(self.context))
            if not self.context.value:
                raise RuntimeError("this thread has no CUDA context")
        else:
            driver("cuDevicePrimaryCtxRetain", c.byref(self.context), self.handle)
            self.use()
        count = c.c_int()
        driver("cuDeviceGetAttribute", c.byref(count), c.c_int(MULTIPROCESSORS), self.handle)
        self.multiprocessors = count.value

    def use(self) -> None:
        """Makes the context current for this thread."""
        self.driver("cuCtxSetCurrent", self.context)

    def function(self, ptx: str, name: str) -> c.c_void_p:
        """A kernel, compiled by the driver."""
        module, function = c.c_void_p(), c.c_void_p()
        self.driver("cuModuleLoadData", c.byref(module), c.c_char_p(ptx.encode() + b"\0"))
        self.driver("cuModuleGetFunction", c.byref(function), module, c.c_char_p(name.encode()))
        return function

    def alloc(self, size: int, fill: int = 0x5A) -> c.c_uint64:
        """Device memory, filled."""
        pointer = c.c_uint64()
        self.driver("cuMemAlloc_v2", c.byref(pointer), c.c_size_t(size))
        self.driver("cuMemsetD8_v2", pointer, c.c_ubyte(fill), c.c_size_t(size))
        return pointer

    def pinned(self, size: int) -> c.c_void_p:
        """Host memory that the GPU reaches by itself, filled."""
        pointer = c.c_void_p()
        self.driver("cuMemAllocHost_v2", c.byref(pointer), c.c_size_t(size))
        c.memset(pointer, 0x5A, size)
        return pointer

    def stream(self) -> c.c_void_p:
        stream = c.c_void_p()
        self.driver("cuStreamCreate", c.byref(stream), c.c_uint(STREAM_NON_BLOCKING))
        return stream

    def event(self) -> c.c_void_p:
        """An event with a time, waited for without spinning."""
        event = c.c_void_p()
        self.driver("cuEventCreate", c.byref(event), c.c_uint(EVENT_BLOCKING_SYNC))
        return event

    def record(self, event: c.c_void_p, stream: c.c_void_p) -> None:
        self.driver("cuEventRecord", event, stream)

    def wait(self, event: c.c_void_p) -> None:
        self.driver("cuEventSynchronize", event)

    def seconds(self, begin: c.c_void_p, end: c.c_void_p) -> float:
        """Between two events that have passed."""
        ms = c.c_float()
        self.driver("cuEventElapsedTime", c.byref(ms), begin, end)
        return ms.value / 1e3

    def launch(self, function: c.c_void_p, blocks: int, threads: int, stream: c.c_void_p, *arguments: object) -> None:
        """Starts a kernel; the arguments are ctypes values."""
        pointers = (c.c_void_p * max(1, len(arguments)))(*(c.addressof(a) for a in arguments))
        one = c.c_uint(1)
        self.driver("cuLaunchKernel", function, c.c_uint(blocks), one, one, c.c_uint(threads), one, one,
                    c.c_uint(0), stream, pointers, c.c_void_p(None))  # fmt: skip

    def to_host(self, host: c.c_void_p, device: c.c_uint64, size: int, stream: c.c_void_p) -> None:
        self.driver("cuMemcpyDtoHAsync_v2", host, device, c.c_size_t(size), stream)

    def to_device(self, device: c.c_uint64, host: c.c_void_p, size: int, stream: c.c_void_p) -> None:
        self.driver("cuMemcpyHtoDAsync_v2", device, host, c.c_size_t(size), stream)

    def within(self, to: c.c_uint64, source: c.c_uint64, size: int, stream: c.c_void_p) -> None:
        self.driver("cuMemcpyDtoDAsync_v2", to, source, c.c_size_t(size), stream)

    def reach(self, peer: Device) -> None:
        """Lets this GPU reach the memory of the other; raises where it cannot."""
        can = c.c_int()
        self.driver("cuDeviceCanAccessPeer", c.byref(can), self.handle, peer.handle)
        if not can.value:
            raise RuntimeError("the GPUs cannot reach each other's memory")
        self.use()
        try:
            self.driver("cuCtxEnablePeerAccess", peer.context, c.c_uint(0))
        except CudaError as error:
            if error.code != 704:  # already enabled
                raise

    def to_peer(self, to: c.c_uint64, peer: Device, source: c.c_uint64, size: int, stream: c.c_void_p) -> None:
        self.driver("cuMemcpyPeerAsync", to, peer.context, source, self.context, c.c_size_t(size), stream)

    def words(self, pinned: c.c_void_p, count: int) -> list[int]:
        """64-bit words of pinned memory."""
        return list((c.c_uint64 * count).from_address(pinned.value))

    def finish(self) -> None:
        """Waits for all work of the context; where a fault shows."""
        self.driver("cuCtxSynchronize")
