package upstream

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// callerIn makes this test the caller that is killed: it starts a program in the folder, prints its PID and waits.
const callerIn = "CORACLE_TEST_UPSTREAM_CALLER"

// Programs end when their caller is killed without cleaning up.
func TestProgramsEndWithTheirCaller(t *testing.T) {
	if dir := os.Getenv(callerIn); dir != "" {
		p, err := begin(Config{Programs: dir, Dir: dir, Command: exec.CommandContext}, "sleep", []string{"3600"})
		require.NoError(t, err)
		fmt.Printf("\nprocess %d\n", p.cmd.Process.Pid)
		<-p.ended
		return
	}
	dir := t.TempDir()
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(sleep, filepath.Join(dir, "sleep")))
	caller := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	caller.Env = append(os.Environ(), callerIn+"="+dir)
	out, err := caller.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, caller.Start())
	lines := bufio.NewScanner(out)
	text, found := "", false
	for !found && lines.Scan() {
		text, found = strings.CutPrefix(lines.Text(), "process ")
	}
	require.True(t, found, "the caller did not print a PID")
	pid, err := strconv.Atoi(text)
	require.NoError(t, err)
	program, err := unix.PidfdOpen(pid, 0)
	require.NoError(t, err)
	defer unix.Close(program)
	require.NoError(t, caller.Process.Kill())
	_ = caller.Wait()
	ended := []unix.PollFd{{Fd: int32(program), Events: unix.POLLIN}}
	for n := 0; n == 0; {
		if n, err = unix.Poll(ended, 60_000); !errors.Is(err, unix.EINTR) {
			require.NoError(t, err)
			require.Equal(t, 1, n, "the program still runs")
		}
	}
}
