"""The four GPU programs of the proofs, as PTX text that the driver compiles when it loads them.

`fma` works on every FP32 lane of the GPU and stamps when each block began and ended, in cycles of its
multiprocessor and in nanoseconds: how many operations were done, in which time, at which clock, is counted
and not assumed. Each value is multiplied by -0.9999999 and swings about for millions of turns, so that the
bits keep changing and the work draws power. `probe` only takes stamps. `fault` writes where no memory is. `spin` polls a word until it is not 0.
"""

from __future__ import annotations

CHAINS = 8  # independent chains of each thread: four are a little too few to hide the latency
UNROLLED = 512  # FMAs of a thread in one turn of the loop; the loop itself costs 3 instructions more
THREADS = 256
BLOCKS_PER_SM = 8  # 8 x 256 threads are all that a multiprocessor holds; needs at most 32 registers a thread
FMA_STAMPS = 5  # of a block: multiprocessor, cycles at begin and end, nanoseconds at begin and end
PROBE_STAMPS = 3  # of a block: multiprocessor, cycles, nanoseconds

_HEAD = ".version 7.8\n.target sm_80\n.address_size 64\n"


def _fma() -> str:
    work = "\n".join(f"    fma.rn.f32 %f{i % CHAINS}, %f{i % CHAINS}, %f20, %f21;" for i in range(UNROLLED))
    begin = "\n".join(f"    add.f32 %f{i}, %f22, 0f{0x3F800000 + (i << 16):08X};" for i in range(CHAINS))
    total = "\n".join(f"    add.f32 %f0, %f0, %f{i};" for i in range(1, CHAINS))
    return f"""
.visible .entry fma(.param .u64 out, .param .u64 stamps, .param .u32 loops)
.maxntid {THREADS}, 1, 1
.minnctapersm {BLOCKS_PER_SM}
{{
    .reg .pred %p<3>;
    .reg .f32 %f<24>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<16>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [stamps];
    ld.param.u32 %r1, [loops];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    cvt.rn.f32.u32 %f22, %r2;
{begin}
    mov.f32 %f20, 0fBF7FFFFE;
    mov.f32 %f21, 0f3F9E0651;
    mov.u64 %rd3, %clock64;
    mov.u64 %rd4, %globaltimer;
TURN:
{work}
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra TURN;
    mov.u64 %rd5, %clock64;
    mov.u64 %rd6, %globaltimer;
{total}
    mad.lo.u32 %r5, %r3, %r4, %r2;
    mul.wide.u32 %rd7, %r5, 4;
    add.u64 %rd8, %rd1, %rd7;
    st.global.f32 [%rd8], %f0;
    setp.ne.u32 %p2, %r2, 0;
    @%p2 bra DONE;
    mov.u32 %r6, %smid;
    cvt.u64.u32 %rd9, %r6;
    mul.wide.u32 %rd10, %r3, {8 * FMA_STAMPS};
    add.u64 %rd11, %rd2, %rd10;
    st.global.u64 [%rd11], %rd9;
    st.global.u64 [%rd11+8], %rd3;
    st.global.u64 [%rd11+16], %rd5;
    st.global.u64 [%rd11+24], %rd4;
    st.global.u64 [%rd11+32], %rd6;
DONE:
    ret;
}}
"""


_PROBE = f"""
.visible .entry probe(.param .u64 stamps)
{{
    .reg .b32 %r<4>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [stamps];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %smid;
    cvt.u64.u32 %rd2, %r2;
    mul.wide.u32 %rd3, %r1, {8 * PROBE_STAMPS};
    add.u64 %rd4, %rd1, %rd3;
    mov.u64 %rd5, %clock64;
    mov.u64 %rd6, %globaltimer;
    st.global.u64 [%rd4], %rd2;
    st.global.u64 [%rd4+8], %rd5;
    st.global.u64 [%rd4+16], %rd6;
    ret;
}}
"""

_FAULT = """
.visible .entry fault()
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    mov.u64 %rd1, 0xdead0000;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""

_SPIN = """
.visible .entry spin(.param .u64 word)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [word];
AGAIN:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    ret;
}
"""

FMA = _HEAD + _fma()
PROBE = _HEAD + _PROBE
FAULT = _HEAD + _FAULT
SPIN = _HEAD + _SPIN

if __name__ == "__main__":
    import sys

    sys.stdout.write({"fma": FMA, "probe": PROBE, "fault": FAULT, "spin": SPIN}[sys.argv[1]])
