package mount

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// makePoint creates a mount point, a directory or a file like fd.
func makePoint(fd int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.MkdirAll(path, 0o711)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// fileSystem returns the type of the file system that an open file is on, for messages.
func fileSystem(fd int) string {
	const unknown = "this file system"
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return unknown
	}
	table, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return unknown
	}
	defer table.Close()
	// proc_pid_mountinfo(5): the third field is the device, the first one after the separator the type.
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	for lines := bufio.NewScanner(table); lines.Scan(); {
		mount, super, _ := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(mount), strings.Fields(super)
		if len(fields) > 2 && len(kind) > 0 && fields[2] == device {
			return kind[0]
		}
	}
	return unknown
}
