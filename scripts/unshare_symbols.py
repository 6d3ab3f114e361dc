"""Makes the unique symbols of ELF files ordinary ones.

    python3 scripts/unshare_symbols.py DIRECTORY

GCC marks variables of inline functions and templates as unique: a process then has one of each name, whichever
library brought it first, even where a library was loaded for itself alone. Two copies of gRPC or Protobuf of
different versions, of ours and of another package, would share them. Needs pyelftools.
"""

import pathlib
import sys

from elftools.elf.elffile import ELFFile

GLOBAL, UNIQUE = 1, 10


def unshare(path):
    """How many symbols of the dynamic table of this file were unique."""
    data = bytearray(path.read_bytes())
    count = 0
    with path.open("rb") as file:
        elf = ELFFile(file)
        table = elf.get_section_by_name(".dynsym")
        if elf.elfclass != 64 or table is None:
            return 0
        for i in range(table.num_symbols()):
            # Elf64_Sym: four bytes of the name, then the binding in the upper half of a byte.
            at = table["sh_offset"] + i * table["sh_entsize"] + 4
            if data[at] >> 4 == UNIQUE:
                data[at] = GLOBAL << 4 | data[at] & 0xF
                count += 1
    if count:
        path.write_bytes(data)
    return count


def main():
    for path in sorted(pathlib.Path(sys.argv[1]).rglob("*")):
        if path.is_file() and path.open("rb").read(4) == b"\x7fELF":
            unshare(path)


if __name__ == "__main__":
    main()
