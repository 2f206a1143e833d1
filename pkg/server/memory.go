package server

import (
	"runtime/debug"

	"github.com/coracle-dev/coracle/pkg/base/memory"
)

// forgetStart returns memory that only the start needed to the kernel: garbage, and pages of the program file,
// which the kernel reads again on access.
func forgetStart() error {
	debug.FreeOSMemory()
	return memory.ReleaseProgram()
}
