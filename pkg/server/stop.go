package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/control"
)

// Stop ends the pods of this machine gracefully, then the process, and returns when it is gone. control.ErrNotRunning if none runs.
func Stop(ctx context.Context, c config.Config, tell func(control.Event)) error {
	if err := control.NewClient(c.RunDir).Stop(ctx, tell); err != nil {
		return err
	}
	return waitUnlocked(c.DataDir)
}

// Delete ends the process and removes everything of the cluster from this machine, also what a killed process left. It
// may be repeated. Pods are not waited for: their containers are killed.
func Delete(ctx context.Context, c config.Config, tell func(control.Event)) error {
	if os.Geteuid() != 0 {
		return errors.New("coracle needs root: run it with sudo")
	}
	// What the libraries warn of on the way is told by the error at its end.
	klog.SetLogger(logr.FromSlogHandler(atLeast{slog.Default().Handler(), slog.LevelError}))
	say := func(format string, args ...any) { tell(control.Event{Message: fmt.Sprintf(format, args...)}) }
	if pid := holder(c.DataDir); pid != 0 {
		say("ending process %d", pid)
		// SIGTERM leaves containers to the steps below, and lets the store close.
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		if err := waitUnlocked(c.DataDir); err != nil {
			return err
		}
	}
	ca, err := os.ReadFile(filepath.Join(c.DataDir, "pki", "server-ca.crt"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	say("removing containers, network and mounts")
	if err := purge(ctx, c); err != nil {
		return err
	}
	if ca != nil {
		if err := unmergeKubeconfig(userKubeconfig(), ca); err != nil {
			return err
		}
	}
	say("removing %s and %s", c.DataDir, c.RunDir)
	return errors.Join(os.RemoveAll(c.RunDir), os.RemoveAll(c.DataDir))
}
