// Package netns lets the tests of a package that changes interfaces, routes or nftables run in namespaces of their own.
//
// Only tests import it; it imports nothing of Coracle. Its invariant: what such tests leave in the kernel ends with their process.
package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

const inside = "CORACLE_TEST_NETNS"

// Main is the body of a TestMain. It runs the test binary once more in a network and a mount namespace of its own, as root, and fails
// when goroutines are left. The outer process calls each cleanup with the PID of the inner one after that has ended.
func Main(m *testing.M, cleanup ...func(pid int)) {
	if os.Getenv(inside) != "" {
		goleak.VerifyTestMain(m)
		return
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	if cmd.Process != nil {
		for _, f := range cleanup {
			f(cmd.Process.Pid)
		}
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "these tests make network namespaces and must run as root:", err)
		os.Exit(1)
	}
}
