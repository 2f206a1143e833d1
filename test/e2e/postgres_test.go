package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// TestPostgreSQL checks that a real database on a joined machine keeps each acknowledged row while the server, the
// agent and the database are killed in turn.
func TestPostgreSQL(t *testing.T) {
	if os.Getenv("CORACLE_TEST_DATABASE") == "" {
		t.Skip("CORACLE_TEST_DATABASE is not set: run `make database`")
	}
	h := host.New(t)
	other := h.Beside()
	h.Start()
	words := joinWords(t, h)
	machine := startAgent(t, other, words)
	defer func() { machine.end() }()
	loadImages(t, other, "images-database", "database-images")
	h.Ctl("cordon " + h.Name)
	h.Apply(example(t, "postgres.yaml"))
	ready := func() {
		t.Helper()
		if out, err := h.Try("ctl", "rollout", "status", "sts/postgres", "--timeout=120s"); err != nil {
			what, _ := h.Try("ctl", "describe", "pod", "postgres-0")
			said, _ := h.Try("ctl", "logs", "postgres-0")
			t.Fatalf("%v: %s\n%s\n%s", err, out, what, said)
		}
	}
	ready()
	require.Equal(t, other.Name, h.Ctl("get pod postgres-0 -o jsonpath={.spec.nodeName}"))
	sql := func(query string) (string, error) {
		out, err := h.Try("ctl", "exec", "postgres-0", "--", "psql", "-qAt", "-v", "ON_ERROR_STOP=1", "-c", query)
		return strings.TrimSpace(out), err
	}
	_, err := sql("create table rows (n int primary key, at timestamptz default now())")
	require.NoError(t, err)

	acknowledged, next := map[int]bool{}, 0
	// insert inserts rows until more of them are acknowledged. An unacknowledged row may or may not exist.
	insert := func(more int) {
		t.Helper()
		deadline := time.Now().Add(2 * host.Patience)
		for want := len(acknowledged) + more; len(acknowledged) < want; next++ {
			require.True(t, time.Now().Before(deadline), "no more rows are acknowledged")
			if out, err := sql(fmt.Sprintf("insert into rows values (%d) returning n", next)); err == nil &&
				out == strconv.Itoa(next) {
				acknowledged[next] = true
			}
		}
	}
	check := func(what string) {
		t.Helper()
		out, err := sql("select n from rows")
		require.NoError(t, err, out)
		have := map[int]bool{}
		for line := range strings.FieldsSeq(out) {
			n, err := strconv.Atoi(line)
			require.NoError(t, err)
			have[n] = true
		}
		for n := range acknowledged {
			require.True(t, have[n], "row %d was acknowledged and is lost: %s", n, what)
		}
		t.Logf("%s: all %d acknowledged rows are there", what, len(acknowledged))
	}
	insert(5)

	started := h.Ctl("get pod postgres-0 -o jsonpath={.status.containerStatuses[0].containerID}")
	h.Kill()
	h.Run("start")
	ready()
	insert(5)
	check("kill -9 of the server")

	machine.kill()
	machine = startAgent(t, other, words)
	ready()
	insert(5)
	require.Equal(t, started, h.Ctl("get pod postgres-0 -o jsonpath={.status.containerStatuses[0].containerID}"),
		"neither kill concerns the database")
	check("kill -9 of the agent")

	inside, cancel := context.WithCancel(t.Context())
	writing := make(chan struct{})
	go func() { // rows in flight during the kill
		defer close(writing)
		for inside.Err() == nil {
			if n := next; len(acknowledged) < 1000 {
				next++
				if out, err := sql(fmt.Sprintf("insert into rows values (%d) returning n", n)); err == nil &&
					out == strconv.Itoa(n) {
					acknowledged[n] = true
				}
			}
		}
	}()
	for _, pid := range podProcesses(t, h.Ctl("get pod postgres-0 -o jsonpath={.metadata.uid}")) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	h.Ctl("wait pod/postgres-0 --for=jsonpath={.status.containerStatuses[0].restartCount}=1 --timeout=120s")
	ready()
	cancel()
	<-writing
	insert(5)
	check("kill -9 of the database")

	uid := h.Ctl("get pod postgres-0 -o jsonpath={.metadata.uid}")
	h.Ctl("delete pod postgres-0 --force --grace-period=0")
	require.Eventually(t, func() bool {
		out, err := h.Try("ctl", "get", "pod", "postgres-0", "-o", "jsonpath={.metadata.uid}")
		return err == nil && out != uid
	}, host.Patience, 50*time.Millisecond)
	ready()
	insert(5)
	check("another pod")

	// Kill all of them together.
	all := podProcesses(t, h.Ctl("get pod postgres-0 -o jsonpath={.metadata.uid}"))
	h.Kill()
	machine.kill()
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	h.Run("start")
	machine = startAgent(t, other, words)
	ready()
	insert(5)
	check("all at once")
}

func podProcesses(t *testing.T, uid string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), uid) {
			continue
		}
		dir := filepath.Dir(file)
		if program, err := os.Readlink(filepath.Join(dir, "exe")); err != nil || filepath.Base(program) != "postgres" {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	require.NotEmpty(t, pids, "no process of pod %s", uid)
	return pids
}
