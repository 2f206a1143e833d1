package program

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
)

// Limit sets the limits of this process: the Go runtime enforces the limit of the stack, the kernel the others. It
// fails if the machine lacks the memory that an evaluation may use, so that a process that runs out of memory later
// has exceeded the limit.
func Limit() error {
	if err := available(protocol.MemoryBytes); err != nil {
		return err
	}
	debug.SetMaxStack(protocol.StackBytes)
	debug.SetMemoryLimit(protocol.MemoryBytes * 3 / 5)
	// The kernel sends SIGXCPU at the soft limit, and SIGKILL a second later.
	late := make(chan os.Signal, 1)
	signal.Notify(late, unix.SIGXCPU)
	go func() {
		<-late
		os.Exit(protocol.Exceeded)
	}()
	if err := unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{
		Cur: protocol.ProcessorSeconds, Max: protocol.ProcessorSeconds + 1,
	}); err != nil {
		return err
	}
	for resource, limit := range map[int]uint64{
		unix.RLIMIT_DATA:  protocol.MemoryBytes,
		unix.RLIMIT_FSIZE: 0,
		unix.RLIMIT_CORE:  0,
	} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return err
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// available reports whether this process can map that much memory. It does not touch the memory.
func available(bytes int) error {
	memory, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		var number unix.Errno // not its text, which the parent would take for an exceeded limit
		errors.As(err, &number)
		return fmt.Errorf("the machine lacks the %d MiB of memory that an evaluation may use (errno %d)", bytes>>20,
			int(number))
	}
	return unix.Munmap(memory)
}
