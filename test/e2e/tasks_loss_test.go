package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/test/host"
)

// lostTask starts a task on a machine that will be lost: its first attempt completes there while nobody hears of it, its second fails.
func lostTask(h *host.Host) {
	h.Ctl("cordon " + h.Name)
	h.Run("run", "torn", "--image", "busybox:1.36", "--retries", "1", "--", "sh", "-c", "[ $TASK_ATTEMPT = 2 ] && exit 12; sleep 8")
	taskUntil(h, "torn", ".status.phase", "Running")
	h.Ctl("uncordon " + h.Name)
}

// tornElsewhere checks that the task was tried again on this machine, and has ended as that attempt did.
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
