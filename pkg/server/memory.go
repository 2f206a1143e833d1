package server

import (
	"runtime/debug"

	"github.com/coracle-dev/coracle/pkg/base/memory"
)

// forgetStart releases the memory that only the start needed: its garbage, and the pages of the program that hold
// what initialises it. Those are pages of the file, so the ones that are needed after all come back by themselves.
func forgetStart() error {
	debug.FreeOSMemory()
	return memory.ReleaseProgram()
}
