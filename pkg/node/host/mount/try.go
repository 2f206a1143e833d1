package mount

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// TryDirectory returns an error if the file system of dir, which must exist, cannot hold the layers of overlays. It
// changes a file and a directory of a layer there, in a directory that it removes.
func TryDirectory(dir string) (err error) {
	at, err := os.MkdirTemp(dir, ".coracle-try-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(at)) }()
	lower := filepath.Join(at, "lower")
	o := Overlay{Lower: []string{lower}, Upper: filepath.Join(at, "upper"), Work: filepath.Join(at, "work")}
	for _, d := range []string{o.Upper, o.Work, filepath.Join(lower, "d", "in")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	kind, err := try(o)
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	return nil
}

// try also returns the type of the layers' file system.
func try(o Overlay) (kind string, err error) {
	lower, err := os.Open(o.Lower[0])
	if err != nil {
		return "", err
	}
	defer lower.Close()
	kind = fileSystem(int(lower.Fd()))
	typed, err := hasTypes(int(lower.Fd()))
	if err != nil {
		return kind, err
	}
	if !typed {
		return kind, errors.New("its directories have no types of files (d_type; mkfs.ext4 -O filetype, mkfs.xfs -n ftype=1)")
	}
	fd, err := o.New()
	if err != nil {
		return kind, err
	}
	defer unix.Close(fd)
	// A removed file leaves a special file, a removed and created directory an extended attribute.
	if err := errors.Join(unix.Unlinkat(fd, "d/in", unix.AT_REMOVEDIR), unix.Unlinkat(fd, "d", unix.AT_REMOVEDIR),
		unix.Mkdirat(fd, "d", 0o700)); err != nil {
		return kind, fmt.Errorf("replace a directory of a layer: %w", err)
	}
	return kind, nil
}

// hasTypes reports whether the entries of a directory, which must have some, have types. Without them, overlays show
// removed files (linux/Documentation/filesystems/overlayfs.rst).
func hasTypes(dir int) (bool, error) {
	buf := make([]byte, 4096)
	n, err := unix.ReadDirent(dir, buf)
	if err != nil {
		return false, os.NewSyscallError("getdents", err)
	}
	// struct linux_dirent64: inode and offset with 8 bytes each, the length with 2, the type, and the name.
	const length, kind, name = 16, 18, 19
	for entries := buf[:n]; len(entries) > name; {
		size := int(binary.NativeEndian.Uint16(entries[length:]))
		if size <= name || size > len(entries) {
			break
		}
		if entries[name] != '.' { // some file systems know the types of these alone
			return entries[kind] != unix.DT_UNKNOWN, nil
		}
		entries = entries[size:]
	}
	return false, errors.New("getdents: no entry of the directory")
}
