"""What an opcode is to the simulator: its class, which pipe runs it, and how many bytes a lane accesses."""

from __future__ import annotations

from typing import Final

# Classes. The first ones are pipes of a sub-core in the order of `machine.PIPES`; what follows needs rules of its own.
INT: Final = 0
SP: Final = 1
DP: Final = 2
SFU: Final = 3
BRA: Final = 4  # special unit 1
TEX: Final = 5  # 2
TENSOR: Final = 6  # 3
UDP: Final = 7  # 4, the uniform datapath
GMMA: Final = 8  # 5, Hopper's warpgroup MMA
EXIT: Final = 9
BAR: Final = 10
DEPBAR: Final = 11
LDGDEPBAR: Final = 12
MEMBAR: Final = 13
LOAD: Final = 14  # global or local
STORE: Final = 15
LDGSTS: Final = 16  # global to shared, without a register
SHARED_LOAD: Final = 17
SHARED_STORE: Final = 18
ATOMIC: Final = 19  # done in L2
BULK_LOAD: Final = 20  # TMA: global to shared
BULK_STORE: Final = 21
MBARRIER_WAIT: Final = 22
GENERIC_LOAD: Final = 23  # becomes LOAD or SHARED_LOAD by its address
GENERIC_STORE: Final = 24
GMMA_WAIT: Final = 25  # for all but the newest so many groups of products
REPLAY_BEGIN: Final = 26  # marks of the tracer around a loop that polls; no instructions
REPLAY_END: Final = 27

# Flags beside the class.
BYPASS_L1: Final = 1
COMMITS_GROUP: Final = 2  # its line has a commit field (v6, *GMMA)
IS_BULK: Final = 4  # its line has the TMA form of operands
IS_REMOTE: Final = 8  # another CTA's shared memory


class UnknownOpcode(ValueError):
    """An instruction that no supported architecture has."""


_BY_TOKEN: Final = {
    SP: "FADD FADD32I FCHK FFMA FFMA32I FMNMX FMUL FMUL32I FSEL FSET FSETP FSWZADD HADD2 HADD2_32I HFMA2 HFMA2_32I "
    "HMUL2 HMUL2_32I HSET2 HSETP2 HMNMX2",
    DP: "DADD DFMA DMUL DSETP DMNMX DSET",
    SFU: "MUFU",
    TENSOR: "HMMA IMMA DMMA BMMA",
    BRA: "BMOV BPT BRA BREAK BRX BRXU BSSY BSYNC CALL JMP JMX JMXU NANOSLEEP RET RPCMOV RTT WARPSYNC YIELD KILL "
    "ENDCOLLECTIVE",
    TEX: "TEX TLD TLD4 TMML TXD TXQ",
    INT: "BMSK BREV FLO IABS IADD IADD3 IADD32I IDP IDP4A IMAD IMNMX IMUL IMUL32I ISCADD ISCADD32I ISETP LEA LOP LOP3 "
    "LOP32I POPC SHF SHL SHR VABSDIFF VABSDIFF4 VIADD VIMNMX F2F F2FP F2I F2IP I2F I2I I2IP I2FP FRND MOV MOV32I MOVM "
    "PRMT SEL SGXT SHFL PLOP3 PSETP P2R R2P B2R CS2R CSMTEST GETLMEMBASE LEPC NOP PMTRIG R2B S2R SETCTAID SETLMEMBASE "
    "VOTE VOTE_VTG LDC MATCH QSPC CCTL CCTLL CCTLT ERRBAR SUATOM SULD SURED SUST AL2P ISBERD LDTRAM OUT PIXLD S2UR "
    "ELECT REDUX VHMNMX USETMAXREG WARPGROUP ACQBULK ARRIVES CREDUX",
    UDP: "R2UR UBMSK UBREV UCLEA UF2FP UFLO UIADD3 UIMAD UISETP ULDC ULEA ULOP ULOP3 ULOP32I UMOV UP2UR UPLOP3 UPOPC "
    "UPRMT UPSETP UR2UP USEL USGXT USHF USHL USHR VOTEU UVIADD UVIMNMX UCGABAR_ARV UCGABAR_WAIT UCCTL UTMACCTL "
    "UTMACMDFLUSH UIABS UVOTE",
    GMMA: "HGMMA IGMMA BGMMA QGMMA",
    EXIT: "EXIT",
    BAR: "BAR",
    DEPBAR: "DEPBAR",
    GMMA_WAIT: "WARPGROUPDEPBAR",
    LDGDEPBAR: "LDGDEPBAR",
    MEMBAR: "MEMBAR FENCE",
    LOAD: "LDG LDL",
    STORE: "STG STL",
    LDGSTS: "LDGSTS",
    SHARED_LOAD: "LDS LDSM ATOMS",
    SHARED_STORE: "STS STSM STAS",
    GENERIC_LOAD: "LD",
    GENERIC_STORE: "ST",
    ATOMIC: "ATOM ATOMG RED REDG",
    BULK_LOAD: "UTMALDG UBLKCP UTMAPF UBLKPF",
    BULK_STORE: "UTMASTG UTMAREDG UBLKRED",
    MBARRIER_WAIT: "SYNCS",
    REPLAY_BEGIN: "REPLAY_START",
    REPLAY_END: "REPLAY_END",
}
_CLASS_OF: Final = {token: kind for kind, tokens in _BY_TOKEN.items() for token in tokens.split()}
_HOPPER_ONLY: Final = frozenset(
    f"{_BY_TOKEN[GMMA]} {_BY_TOKEN[BULK_LOAD]} {_BY_TOKEN[BULK_STORE]} SYNCS WARPGROUP USETMAXREG ELECT STAS STSM "
    "UCGABAR_ARV UCGABAR_WAIT ACQBULK ARRIVES FENCE UTMACCTL".split()
)


def describe(opcode: str, binary_version: int) -> int:
    """Class | width in bytes << 8 | flags << 16 of a full dotted opcode, for one architecture."""
    tokens = opcode.split(".")
    first = tokens[0]
    kind = _CLASS_OF.get(first)
    if kind is None:
        raise UnknownOpcode(f"{opcode} is no instruction that this simulator knows")
    if first in _HOPPER_ONLY and binary_version < 90:
        raise UnknownOpcode(f"{opcode} is no instruction of sm_{binary_version}; it came with sm_90")
    if first == "SYNCS" and not any("WAIT" in token for token in tokens):
        kind = INT  # arrivals are counted with the bytes they announce: only the wait holds a warp up
    if first == "WARPGROUP" and "DEPBAR" in tokens:
        kind = GMMA_WAIT
    flags = 0
    # Volta and later do what is coherent over the whole GPU in L2.
    if kind == ATOMIC or ("STRONG" in tokens and "GPU" in tokens):
        flags |= BYPASS_L1
    if first == "STAS":
        flags |= IS_REMOTE
    if "GMMA" in first:
        flags |= COMMITS_GROUP
        return kind | _gmma_columns(tokens) // 8 << 8 | flags << 16
    if kind in {BULK_LOAD, BULK_STORE}:
        flags |= IS_BULK | BYPASS_L1
    return kind | _width_bytes(tokens) << 8 | flags << 16


def _gmma_columns(tokens: list[str]) -> int:
    """N of HGMMA.64xNx16: what decides how long the tensor core is busy, for M and the bytes along K are fixed."""
    for token in tokens[1:]:
        shape = token.split("x")
        if len(shape) == 3 and all(part.isdecimal() for part in shape):
            return min(max(int(shape[1]), 8), 256)
    return 64


def _width_bytes(tokens: list[str]) -> int:
    """Accel-Sim takes the first number in the opcode for the width in bits, whatever the line says: LDSM.16 is 2 B."""
    for token in tokens[1:]:
        number = token.removeprefix("U")
        if number.isdecimal():
            return max(1, min(int(number) // 8, 255))
    return 4
