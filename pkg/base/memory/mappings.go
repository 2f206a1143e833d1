package memory

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mapping is a range of addresses in proc_pid_maps(5) or proc_pid_smaps(5).
type mapping struct {
	from, to    uintptr
	permissions string
	path        string
	// own is set if smaps reports private pages, which differ from the file's.
	own bool
}

// ReleaseProgram releases the resident pages of the program's file. They stay in the page cache, and are mapped again
// one by one when they are used.
func ReleaseProgram() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	return release("smaps", func(m mapping) bool { return ofProgram(m, program) })
}

// ofProgram reports whether a mapping is unchanged from the program's file: not writable, and without pages that a
// loader wrote to before it protected them (relocations).
func ofProgram(m mapping, program string) bool {
	return m.path == program && m.permissions[1] != 'w' && !m.own
}

// ReleaseFile releases the resident pages of a file that is mapped shared and read-only. They stay in the page cache,
// and are mapped again one by one when they are read. The caller must prevent that the addresses are mapped to
// something else meanwhile.
func ReleaseFile(path string) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	return release("maps", func(m mapping) bool { return m.path == path && m.permissions == "r--s" })
}

// release releases the pages of the wanted mappings. list is the file in /proc/self that lists them.
func release(list string, wanted func(mapping) bool) error {
	f, err := os.Open("/proc/self/" + list)
	if err != nil {
		return err
	}
	defer f.Close()
	all, err := parse(f)
	if err != nil {
		return err
	}
	for _, m := range all {
		if !wanted(m) {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise %x-%x: %w", m.from, m.to, errno)
		}
	}
	return nil
}

func parse(list io.Reader) (found []mapping, err error) {
	file := false
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		line := lines.Text()
		first, rest, _ := strings.Cut(line, " ")
		if strings.HasSuffix(first, ":") { // an attribute of smaps
			if file && first == "Anonymous:" {
				found[len(found)-1].own = strings.TrimSpace(rest) != "0 kB"
			}
			continue
		}
		// "address perms offset dev inode path"; a path may contain spaces.
		var m mapping
		if _, err := fmt.Sscanf(first, "%x-%x", &m.from, &m.to); err != nil {
			return nil, fmt.Errorf("mapping %q: %w", line, err)
		}
		at := strings.IndexByte(rest, '/')
		if file = at >= 0; file {
			m.permissions, m.path = rest[:4], rest[at:]
			found = append(found, m)
		}
	}
	return found, lines.Err()
}
