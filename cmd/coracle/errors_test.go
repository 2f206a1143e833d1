package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// TestErrorsByCommand compares testdata/errors.txt with what each command answers on a machine without a cluster:
// without arguments, with too many, with the name of something that does not exist, and with an unknown flag. A new
// command or a reworded error changes that file, so that someone reads it: UPDATE=1 writes the file.
func TestErrorsByCommand(t *testing.T) {
	golden, err := filepath.Abs("testdata/errors.txt")
	require.NoError(t, err)
	home := t.TempDir()
	for name, value := range map[string]string{
		"HOME": home, "KUBECONFIG": "", "CORACLE_DATA_DIR": filepath.Join(home, "data"),
		"CORACLE_RUN_DIR": filepath.Join(home, "run"), "KUBERNETES_SERVICE_HOST": "",
	} {
		t.Setenv(name, value)
	}
	t.Chdir(home)
	// client-go reads HOME when the program starts: without this the test would find the user's cluster.
	homeFile := clientcmd.RecommendedHomeFile
	clientcmd.RecommendedHomeFile = filepath.Join(home, "none")
	t.Cleanup(func() { clientcmd.RecommendedHomeFile = homeFile })
	stdout := os.Stdout
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	require.NoError(t, err)
	os.Stdout = null
	t.Cleanup(func() { os.Stdout = stdout; _ = null.Close() })

	var table strings.Builder
	answer := func(args ...string) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		cmd := root()
		cmd.SetOut(null)
		cmd.SetErr(null)
		cmd.SetIn(strings.NewReader(""))
		text := "no error"
		if err := run(ctx, cmd, args); err != nil {
			exit := &command.Exit{Code: 1, Err: err}
			errors.As(err, &exit)
			text = fmt.Sprintf("%d %v", exit.Code, exit.Err)
		}
		fmt.Fprintf(&table, "%s\n    %s\n", strings.Join(append([]string{"coracle"}, args...), " "),
			strings.ReplaceAll(strings.ReplaceAll(text, home, "~"), "\n", "\n    "))
	}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if !sub.IsAvailableCommand() || runsProcess[sub.Name()] {
				continue
			}
			path := strings.Fields(sub.CommandPath())[1:]
			if sub.HasAvailableSubCommands() {
				answer(append(path, "bogus")...)
				visit(sub)
				continue
			}
			if sub.Name() != "delete" { // its only answer depends on the machine
				answer(path...)
			}
			answer(append(path, "absent-"+sub.Name())...)
			answer(append(path, "a", "b", "c", "d")...)
			answer(append(path, "--bogus")...)
		}
	}
	for _, words := range []string{
		"", "bogus", "statu", "up", "kubeconfig", "create cluster", "delete cluster", "export logs dir", "export kubeconfig",
		"run a --image busybox sh -c true", "certs chek", "help certs", "completion bash", "start absent",
		"start --bogus", "start --wait", "start --name x", "start --dns-forward-to x",
		"run a --image busybox --env x", "send pod/a", "send a b", "queue list a", "token create --ttl x", "image load - -",
		"kontrol clusters add a --local --pull", "kontrol adopt deployment --cluster a", "certs rotate --ca",
		"agent --join x", "snapshot restore", "help bogus", "help -k bogus",
	} {
		answer(strings.Fields(words)...)
	}
	visit(root())
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(golden, []byte(table.String()), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	was, is := strings.Split(string(want), "\n"), strings.Split(table.String(), "\n")
	for i := range max(len(was), len(is)) {
		if i >= len(was) || i >= len(is) || was[i] != is[i] {
			require.Equal(t, was[min(i, len(was)):min(i+4, len(was))], is[min(i, len(is)):min(i+4, len(is))], "line %d", i+1)
		}
	}
}

// runsProcess are commands that start a process or that belong to kubectl.
var runsProcess = map[string]bool{
	"agent": true, "completion": true, "controllers": true, "ctl": true, "operator": true, "scheduler": true,
	"server": true, "start": true,
}
