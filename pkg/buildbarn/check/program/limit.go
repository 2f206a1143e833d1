package program

import (
	"os"
	"os/signal"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/buildbarn/check/protocol"
)

// Limit sets the limits of this process, which the kernel enforces.
func Limit() error {
	debug.SetMaxStack(protocol.StackBytes)
	debug.SetMemoryLimit(protocol.MemoryBytes * 3 / 4)
	// The kernel sends the signal at the limit, and kills a second later.
	late := make(chan os.Signal, 1)
	signal.Notify(late, unix.SIGXCPU)
	go func() {
		<-late
		os.Exit(protocol.Exceeded)
	}()
	if err := unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: protocol.ProcessorSeconds, Max: protocol.ProcessorSeconds + 1}); err != nil {
		return err
	}
	for resource, limit := range map[int]uint64{
		// Memory that can be written to; the runtime takes it in steps of 64 MiB.
		unix.RLIMIT_DATA:  protocol.MemoryBytes + 64<<20,
		unix.RLIMIT_FSIZE: 0,
		unix.RLIMIT_CORE:  0,
	} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return err
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
