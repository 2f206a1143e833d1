// Package pids reads how many processes and threads the machine has, and may have.
//
// Its invariant: it counts threads, since the kernel's limits are for both.
package pids

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const maxFile = 256 // bytes

// Limit returns the maximum number of process IDs: the smaller of the kernel's two limits (proc(5), pid_max and
// threads-max).
func Limit() (int64, error) {
	var least int64
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		text, err := bounded.File(file, maxFile)
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		if least == 0 || n < least {
			least = n
		}
	}
	return least, nil
}

// Count returns the number of processes and threads (proc(5), loadavg: "0.00 0.01 0.05 1/123 4567" for 123).
func Count() (int64, error) {
	text, err := bounded.File("/proc/loadavg", maxFile)
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 4 {
		return 0, errors.New("/proc/loadavg has no number of processes")
	}
	_, count, _ := strings.Cut(fields[3], "/")
	return strconv.ParseInt(count, 10, 64)
}
