// Package packed embeds the program coracle-buildbarn-check. Its invariant: the program is in memory only while it is
// open.
package packed

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

const maxBytes = 64 << 20

// Open returns the program as an anonymous executable file in memory. The caller closes it.
func Open() (*os.File, error) {
	packed, err := assets.ReadFile("assets/" + runtime.GOARCH + "/coracle-buildbarn-check.zst")
	if err != nil {
		return nil, errors.New("coracle was built without coracle-buildbarn-check: run make build")
	}
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBytes))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	program, err := r.DecodeAll(packed, nil)
	if err != nil {
		return nil, fmt.Errorf("coracle-buildbarn-check in this binary: %w", err)
	}
	fd, err := unix.MemfdCreate("coracle-buildbarn-check", unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 all such files are executable
		fd, err = unix.MemfdCreate("coracle-buildbarn-check", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("a file in memory for coracle-buildbarn-check: %w", err)
	}
	f := os.NewFile(uintptr(fd), "coracle-buildbarn-check")
	if _, err := f.Write(program); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
