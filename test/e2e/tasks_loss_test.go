package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/test/host"
)

// nap is how many seconds the first attempt of lostTask sleeps. The number identifies its process on this machine.
var nap = strconv.Itoa(100_000 + os.Getpid())

// lostTask starts a task on a machine that will be lost. Its first attempt runs until completeUnheard; its second
// attempt fails.
func lostTask(h *host.Host) {
	h.Ctl("cordon " + h.Name)
	h.Run("run", "torn", "--image", "busybox:1.36", "--retries", "1", "--", "sh", "-c",
		"[ $TASK_ATTEMPT = 2 ] && exit 12; env sleep "+nap+"; true")
	taskUntil(h, "torn", ".status.phase", "Running")
	h.Ctl("uncordon " + h.Name)
}

// completeUnheard lets the first attempt of lostTask complete while no agent is running to notice.
func completeUnheard(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, p := range processes {
			if line, _ := os.ReadFile(p); strings.HasSuffix(string(line), "sleep\x00"+nap+"\x00") {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(p)))
				return syscall.Kill(pid, syscall.SIGKILL) == nil
			}
		}
		return false
	}, host.Patience, 10*time.Millisecond)
}

// tornElsewhere checks that the task's second attempt ran on this machine, and that the task has that attempt's result.
func tornElsewhere(t *testing.T, h, other *host.Host) {
	t.Helper()
	taskUntil(h, "torn", ".status.phase", "Failed")
	s := readTask(t, h, "torn").Status
	require.Len(t, s.Attempts, 2)
	lost, last := s.Attempts[0], s.Attempts[1]
	require.Equal(t, tasks.ReasonNodeLost, lost.Reason)
	require.Equal(t, other.Name, lost.Node)
	require.Nil(t, lost.ExitCode)
	require.Equal(t, h.Name, last.Node)
	require.EqualValues(t, 12, *last.ExitCode)
	require.EqualValues(t, 12, *s.ExitCode)
}
