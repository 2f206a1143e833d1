package server

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// forgetStart gives back the memory that only the start needed: its garbage, and the pages of the program that hold
// what initialises it. Those are pages of the file, so the ones that are needed after all come back by themselves.
func forgetStart() error {
	debug.FreeOSMemory()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return err
	}
	return release(programMappings(string(smaps), program))
}

// release lets go of the pages of mappings of files.
func release(mappings []mapping) error {
	for _, m := range mappings {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise %x-%x: %w", m.from, m.to, errno)
		}
	}
	return nil
}

type mapping struct{ from, to uintptr }

// programMappings lists those mappings of the program's file that are as the file is: not writable, and with no page that a
// loader wrote to before it protected it (relocations).
func programMappings(smaps, program string) (found []mapping) {
	var current mapping
	candidate := false
	for line := range strings.Lines(smaps) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case !strings.HasSuffix(fields[0], ":"):
			// proc_pid_smaps(5): "address perms offset dev inode path" heads each mapping.
			_, err := fmt.Sscanf(fields[0], "%x-%x", &current.from, &current.to)
			candidate = err == nil && len(fields) == 6 && fields[5] == program && fields[1][1] != 'w'
		case fields[0] == "Anonymous:" && candidate && fields[1] == "0":
			found = append(found, current)
		}
	}
	return found
}
