// Package netns runs the tests of a package that changes interfaces, routes or nftables in namespaces of their own.
//
// Only tests import it; it imports no package of Coracle. Its invariant: everything that such tests leave in the
// kernel ends with their process.
package netns

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

const inside = "CORACLE_TEST_NETNS"

// Main is the body of a TestMain. It runs the test binary again as root in a new network and mount namespace, and
// fails if goroutines leak. After the inner process has ended, the outer one calls each cleanup with the inner PID.
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

// Listing returns what nft prints for all tables in this namespace. It fails if nft cannot print an object: such an
// object makes nft, firewalld and other programs abort, whatever they were asked to do.
func Listing(t testing.TB) string {
	t.Helper()
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("nft", args...)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("nft %s: %v: %s", strings.Join(args, " "), err, &errs)
		}
		for line := range strings.Lines(errs.String()) {
			// Versions before 1.1 put some statements into JSON as text.
			if !strings.Contains(line, "have no json callback") {
				t.Errorf("nft %s: %s", strings.Join(args, " "), line)
			}
		}
		return string(out)
	}
	if out := run("-j", "list", "ruleset"); !json.Valid([]byte(out)) {
		t.Errorf("nft -j list ruleset printed invalid JSON: %s", out)
	}
	text := run("list", "ruleset")
	for line := range strings.Lines(text) {
		for _, mark := range []string{"[invalid type]", "unknown", "@nh,", "@th,", "@ll,"} {
			if strings.Contains(line, mark) {
				t.Errorf("nft cannot print this object: %s", line)
			}
		}
	}
	return text
}
