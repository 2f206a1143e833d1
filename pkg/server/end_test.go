package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

const holdVariable = "CORACLE_TEST_HOLD" // names the data directory that a child of this test holds

// hold is the child: it holds the directory, and its socket accepts connections but never responds. In mode deaf it
// ignores SIGTERM.
func hold(dir, mode string) {
	f, err := lock(dir)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	listener, err := net.Listen("unix", filepath.Join(dir, socket.Socket))
	if err != nil {
		panic(err)
	}
	defer listener.Close()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	fmt.Println("holding")
	for got := 1; ; got++ {
		if <-signals; mode == "polite" || mode == "slow" && got == 2 {
			return
		}
	}
}

func holding(t *testing.T, mode string) (*exec.Cmd, string) {
	t.Helper()
	dir := t.TempDir()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), holdVariable+"="+mode+":"+dir)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	require.True(t, bufio.NewScanner(out).Scan())
	return child, dir
}

func TestAProcessThatIgnoresSIGTERMIsKilled(t *testing.T) {
	for mode, want := range map[string]struct {
		killed bool
		signal syscall.Signal
	}{"deaf": {true, syscall.SIGKILL}, "polite": {false, 0}, "stopped": {true, syscall.SIGKILL}} {
		t.Run(mode, func(t *testing.T) {
			child, dir := holding(t, mode)
			if mode == "stopped" {
				require.NoError(t, child.Process.Signal(syscall.SIGSTOP))
			}
			var said []string
			e := ending{
				dir:      dir,
				graceful: 30 * time.Second,
				killed:   time.Minute,
				say:      func(f string, args ...any) { said = append(said, fmt.Sprintf(f, args...)) },
			}
			if want.killed {
				e.graceful = 100 * time.Millisecond
			}
			pid, killed, err := e.run(t.Context())
			require.NoError(t, err)
			require.Equal(t, child.Process.Pid, pid)
			require.Equal(t, want.killed, killed)
			require.Zero(t, holder(dir))
			_ = child.Wait()
			status := child.ProcessState.Sys().(syscall.WaitStatus)
			require.Equal(t, want.killed, status.Signaled())
			if want.killed {
				require.Equal(t, want.signal, status.Signal())
				require.Contains(t, strings.Join(said, "\n"), fmt.Sprintf("process %d did not end within 100ms: killing it", pid))
			} else {
				require.Empty(t, said)
			}
			pid, _, err = e.run(t.Context())
			require.NoError(t, err)
			require.Zero(t, pid)
		})
	}
}

// TestASecondSIGTERMHurries checks that a deletion ends the --shutdown-delay of a process with a second SIGTERM.
func TestASecondSIGTERMHurries(t *testing.T) {
	child, dir := holding(t, "slow")
	e := ending{dir: dir, graceful: time.Hour, killed: time.Hour, hurry: true, say: t.Logf}
	_, killed, err := e.run(t.Context())
	require.NoError(t, err)
	require.False(t, killed)
	require.NoError(t, child.Wait())
}

// TestAProcessThatIsKilledMeanwhile checks that a killed process counts as ended, even while it is still a zombie.
func TestAProcessThatIsKilledMeanwhile(t *testing.T) {
	for range 10 {
		child, dir := holding(t, "deaf")
		require.NoError(t, child.Process.Kill())
		_, _, err := ending{dir: dir, graceful: time.Minute, killed: time.Minute, say: t.Logf}.run(t.Context())
		require.NoError(t, err)
		_ = child.Wait()
	}
}

func TestTheEndOfTheContextEndsTheWaitForAProcess(t *testing.T) {
	child, dir := holding(t, "deaf")
	ctx, cancel := context.WithCancel(t.Context())
	e := ending{dir: dir, graceful: time.Hour, killed: time.Hour, say: func(string, ...any) { cancel() }}
	_, killed, err := e.run(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, killed)
	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
}

func TestOnlyTheHolderOfTheLockIsEnded(t *testing.T) {
	dir := t.TempDir()
	f, err := lock(dir)
	require.NoError(t, err)
	defer f.Close()
	// The file has the PID of an unrelated process, as after a reboot or from another container.
	_, err = f.WriteAt([]byte(fmt.Sprintf("%-10d\n", os.Getppid())), 0)
	require.NoError(t, err)
	_, _, err = ending{dir: dir, say: t.Logf}.run(t.Context())
	require.ErrorContains(t, err, "does not have its coracle.pid open")
}

// TestStopEndsAProcessThatDoesNotAnswer checks that a process is stopped whose socket accepts connections but never
// responds.
func TestStopEndsAProcessThatDoesNotAnswer(t *testing.T) {
	child, dir := holding(t, "polite")
	c := config.Default()
	c.DataDir, c.RunDir = dir, dir
	var said []string
	client := socket.NewClient(dir)
	client.Silence = 100 * time.Millisecond
	err := stop(t.Context(), client, c, func(e socket.Event) { said = append(said, e.Message) })
	require.ErrorContains(t, err, "its pods were not stopped")
	require.Contains(t, said, "the process does not respond: terminating it without stopping its pods")
	require.Zero(t, holder(dir))
	_ = child.Wait()
}

// stuckAgent has one pod that stops and one that does not.
type stuckAgent struct{}

func (stuckAgent) Pods() []*corev1.Pod {
	pod := func(name string, grace int64) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name},
			Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: &grace},
		}
	}
	return []*corev1.Pod{pod("good", 30), pod("stuck", 90)}
}

func (a stuckAgent) StopPods(ctx context.Context, ended func(*corev1.Pod)) error {
	ended(a.Pods()[0])
	<-ctx.Done()
	return ctx.Err()
}

func TestAPodThatDoesNotEndIsWaitedForAsLongAsItsGracePeriodAndNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var said []string
		err := stopPods(t.Context(), stuckAgent{}, func(m string) { said = append(said, m) })
		require.ErrorContains(t, err, "a/stuck")
		require.NotContains(t, err.Error(), "good")
		require.Equal(t, 90*time.Second+drainMargin, time.Since(began))
		require.Equal(t,
			[]string{
				"stopped pod a/good", "waiting for a/stuck (at most 1m55s more)", "waiting for a/stuck (at most 1m40s more)",
			}, said[:3])
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	require.ErrorIs(t, stopPods(ctx, stuckAgent{}, func(string) {}), context.Canceled)
}
